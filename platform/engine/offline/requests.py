"""RequestMaker: a prompt, its parameters and its adapter as a request to the engine and the collector of its answer."""

import uuid

from ..pooling.wanted import Pooling
from ..protocol import BeamSearch, EngineInfo, GenerateRequest
from ..sampling_params import SamplingParams
from ..text.bad_word_tokens import bad_word_tokens
from ..text.tokenizer import Tokenizer, TokenPair, second_text
from .adapter_book import AdapterBook
from .collector import Collector
from .lora_request import LoRARequest
from .pooling.collector import PooledCollector
from .prompts import Adapter, Prompt, read_prompt

AS_LONG_AS_POSSIBLE = -1


def random_uuid() -> str:
    """An id that no other request has."""
    return uuid.uuid4().hex


class RequestMaker:
    def __init__(self, tokenizer: Tokenizer, adapters: AdapterBook, info: EngineInfo) -> None:
        self.tokenizer, self.adapters = tokenizer, adapters
        self._max_model_len, self._keeps_beginning = info.max_model_len, info.keeps_beginning
        self._before_texts = "" if info.pooling is None else info.pooling.prompt

    def make(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        adapter: Adapter | LoRARequest | None = None,
        priority: int = 0,
        beam_search: BeamSearch | None = None,
    ) -> Collector:
        """ValueError for what is wrong with any of them; the engine looks at token ids and lengths. The adapter of a
        LoRARequest must be known."""
        if not isinstance(params, SamplingParams):
            raise ValueError(f"params must be SamplingParams, got {type(params).__name__}; vectors are for encode()")
        params.check()
        text, token_ids = read_prompt(prompt, self.tokenizer)
        room = self._max_model_len - (params.max_tokens or 1)
        token_ids = _truncated(token_ids, params.truncate_prompt_tokens, room)
        request = GenerateRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            params=params,
            adapters=self.adapters.references(adapter, token_ids),
            priority=priority,
            beam_search=beam_search,
            bad_words=bad_word_tokens(params.bad_words, self.tokenizer),
        )
        if isinstance(adapter, LoRARequest):
            return Collector(request, text, adapter.name, self.tokenizer, adapter)
        return Collector(request, text, adapter, self.tokenizer)

    def pair(self, first: str, second: str, truncate_prompt_tokens: int | None) -> TokenPair:
        """Two texts in one prompt, as the tokenizer joins them. Cut here where the model keeps their beginnings."""
        is_cut = self._keeps_beginning and truncate_prompt_tokens is not None
        most = self.most_tokens(truncate_prompt_tokens) if is_cut else None
        return self.tokenizer.encode_pair(first, second, most)

    def most_tokens(self, truncate_prompt_tokens: int | None) -> int:
        """Of a prompt that is cut to them."""
        if truncate_prompt_tokens in (None, AS_LONG_AS_POSSIBLE):
            return self._max_model_len
        return truncate_prompt_tokens

    def make_pooled(
        self,
        request_id: str,
        prompt: Prompt,
        pooling: Pooling,
        truncate_prompt_tokens: int | None = None,
        adapter: Adapter | LoRARequest | None = None,
        priority: int = 0,
    ) -> PooledCollector:
        """As make(), of a prompt that a vector is asked of."""
        _, token_ids = read_prompt(prompt, self.tokenizer, "" if pooling.classify else self._before_texts)
        if self._keeps_beginning and truncate_prompt_tokens is not None and not isinstance(token_ids, TokenPair):
            token_ids = self.tokenizer.cut(token_ids, self.most_tokens(truncate_prompt_tokens))
        elif not self._keeps_beginning:
            token_ids = _truncated(token_ids, truncate_prompt_tokens, self._max_model_len)
        request = GenerateRequest(
            request_id=request_id,
            prompt_token_ids=list(token_ids),
            second_text=second_text(token_ids),
            params=SamplingParams(),
            adapters=self.adapters.references(adapter, token_ids),
            priority=priority,
            pooling=pooling,
        )
        if isinstance(adapter, LoRARequest):
            return PooledCollector(request, adapter.name, adapter)
        return PooledCollector(request, adapter)


def _truncated(token_ids: list[int], most: int | None, room: int) -> list[int]:
    if most is None:
        return token_ids
    return token_ids[-(max(1, room) if most == AS_LONG_AS_POSSIBLE else most) :]
