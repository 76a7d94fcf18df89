"""RequestMaker: a prompt, its parameters and its adapter as a request to the engine and the collector of its answer."""

from ..protocol import GenerateRequest
from ..sampling_params import SamplingParams
from ..text.bad_word_tokens import bad_word_tokens
from ..text.tokenizer import Tokenizer
from .adapter_book import AdapterBook
from .collector import Collector
from .lora_request import LoRARequest
from .prompts import Adapter, Prompt, read_prompt

AS_LONG_AS_POSSIBLE = -1


class RequestMaker:
    def __init__(self, tokenizer: Tokenizer, adapters: AdapterBook, max_model_len: int) -> None:
        self.tokenizer, self.adapters = tokenizer, adapters
        self._max_model_len = max_model_len

    def make(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        adapter: Adapter | LoRARequest | None = None,
        priority: int = 0,
    ) -> Collector:
        """ValueError for what is wrong with any of them; the engine looks at token ids and lengths. The adapter of a
        LoRARequest must be known."""
        params.check()
        text, token_ids = read_prompt(prompt, self.tokenizer)
        token_ids = self._truncated(token_ids, params)
        request = GenerateRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            params=params,
            adapters=self.adapters.references(adapter, token_ids),
            priority=priority,
            bad_words=bad_word_tokens(params.bad_words, self.tokenizer),
        )
        if isinstance(adapter, LoRARequest):
            return Collector(request, text, adapter.name, self.tokenizer, adapter)
        return Collector(request, text, adapter, self.tokenizer)

    def _truncated(self, token_ids: list[int], params: SamplingParams) -> list[int]:
        most = params.truncate_prompt_tokens
        if most is None:
            return token_ids
        if most == AS_LONG_AS_POSSIBLE:
            most = max(1, self._max_model_len - (params.max_tokens or 1))
        return token_ids[-most:]
