"""PoolingCalls: the methods of LLM that answer with vectors."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...pooling.pairs import check_classes, paired
from ...pooling.wanted import TOKENS_ALONE, PoolingKind
from ..chat import chat_prompts, transformers_tokenizer
from ..llm_engine import LLMEngine
from ..lora_request import LoRARequest
from ..progress import progress_bar
from ..prompts import Adapter, Prompt, list_prompts, one_each
from .collector import PooledCollector
from .outputs import ClassificationRequestOutput, EmbeddingRequestOutput, PoolingRequestOutput, ScoringRequestOutput
from .params import CLASSIFY, EMBED, PoolingParams, truncating, wanted_pooling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PoolingCalls:
    llm_engine: LLMEngine

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | Sequence[PoolingParams | None] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        adapter: Adapter | Sequence[Adapter | None] | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """One embedding per prompt, in their order. Parameters and adapters: one for all, or one each.
        `truncate_prompt_tokens`: that of all parameters.

        How it is made of the hidden states, `info.pooling` says: as the model's modules.json, else their mean, scaled
        to length 1. ValueError for what is wrong with a prompt, and for a model that makes none; RuntimeError when the
        engine fails on one.
        """
        outputs = self.encode(
            prompts,
            pooling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            adapter=adapter,
            pooling_task=EMBED,
            truncate_prompt_tokens=truncate_prompt_tokens,
        )
        return [EmbeddingRequestOutput.from_base(output) for output in outputs]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams | None] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        adapter: Adapter | Sequence[Adapter | None] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """The probability of each class per prompt, by the adapter's own classification head, else by the base's.
        `info.classes` has the base's labels. Errors as embed()."""
        outputs = self.encode(
            prompts,
            pooling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            adapter=adapter,
            pooling_task=CLASSIFY,
        )
        return [ClassificationRequestOutput.from_base(output) for output in outputs]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | None = None,
        adapter: Adapter | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[ScoringRequestOutput]:
        """One score per pair: of one text with each of several, or of as many with as many.

        A model, or an adapter, with a classification head of one class judges both texts in one prompt. Any other model
        embeds them, and the score is the cosine of the two. ValueError for a head of several classes.
        """
        firsts, seconds = paired(data_1, data_2)
        self.llm_engine.learn([lora_request])
        heads = self.llm_engine.adapters.num_classes(lora_request or adapter)
        classes = self.llm_engine.info.classes
        if self.llm_engine.info.classified_by is PoolingKind.ALL:
            raise ValueError(f"{TOKENS_ALONE}, or compare the embeddings of embed()")
        count = heads or (0 if classes is None else len(classes.labels))
        asked: dict[str, Any] = {
            "use_tqdm": use_tqdm,
            "lora_request": lora_request,
            "adapter": adapter,
            "truncate_prompt_tokens": truncate_prompt_tokens,
        }
        if count:
            check_classes(count)
            template = None if heads or classes is None else classes.pairs
            both = zip(firsts, seconds, strict=True)
            if template is None:
                most = truncate_prompt_tokens
                if most is None and pooling_params is not None:
                    most = pooling_params.truncate_prompt_tokens
                pairs: list[list[int]] = [self.llm_engine.requests.pair(*pair, most) for pair in both]
            else:
                chats, added = [template.messages(*pair) for pair in both], template.add_generation_prompt
                pairs = chat_prompts(
                    _chat_tokenizer(self.llm_engine.tokenizer_folder), chats, add_generation_prompt=added
                )
            outputs = self.encode(pairs, pooling_params, pooling_task=CLASSIFY, **asked)
            return [ScoringRequestOutput.from_base(output) for output in outputs]
        # One text beside many is computed once.
        distinct = firsts[:1] if len(set(firsts)) == 1 else firsts
        outputs = self.encode([*distinct, *seconds], pooling_params, pooling_task=EMBED, **asked)
        left, right = outputs[: len(distinct)], outputs[len(distinct) :]
        left = left * len(right) if len(left) == 1 else left
        return [ScoringRequestOutput.from_embeddings(*pair) for pair in zip(left, right, strict=True)]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams | None] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        adapter: Adapter | Sequence[Adapter | None] | None = None,
        pooling_task: str | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[PoolingRequestOutput]:
        """One vector per prompt, as a tensor; of the tasks of tokens a row per token. `pooling_task` names what is
        asked for. Errors as embed()."""
        given = list_prompts(prompts)
        rows = one_each("pooling_params", pooling_params, len(given), PoolingParams, "PoolingParams")
        asked = [truncating(row or PoolingParams(), truncate_prompt_tokens) for row in rows]
        adapters = _adapters(adapter, lora_request, len(given))
        collectors = list[PooledCollector]()
        with self.llm_engine.alone():
            self.llm_engine.learn(adapters)
            try:
                for place, row in enumerate(zip(given, asked, adapters, strict=True)):
                    collectors.append(self._start_pooled(place, pooling_task, *row))
                self._run_pooled(len(collectors), use_tqdm)
            finally:
                self.llm_engine.abort_request(collector.request.request_id for collector in collectors)
        return [collector.output() for collector in collectors]

    def _start_pooled(
        self,
        place: int,
        task: str | None,
        prompt: Prompt,
        params: PoolingParams,
        adapter: Adapter | LoRARequest | None,
    ) -> PooledCollector:
        """ValueError names the prompt's place."""
        engine = self.llm_engine
        pooling = wanted_pooling(task, params, engine.info)
        try:
            collector = engine.requests.make_pooled(
                engine.next_id(), prompt, pooling, params.truncate_prompt_tokens, adapter or None
            )
            engine.start(collector)
        except ValueError as error:
            raise ValueError(f"prompt {place}: {error}") from error
        return collector

    def _run_pooled(self, total: int, use_tqdm: bool | Callable[..., Any]) -> None:
        with progress_bar(total, use_tqdm) as advance:
            while self.llm_engine.has_unfinished_requests():
                for collector in self.llm_engine.advance():
                    if collector.failure is not None and isinstance(collector, PooledCollector):
                        collector.output()
                    if collector.finished:
                        advance(collector.num_tokens)


@lru_cache(maxsize=4)
def _chat_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    return transformers_tokenizer(folder)


def _adapters(
    adapter: Adapter | Sequence[Adapter | None] | None,
    lora_request: LoRARequest | Sequence[LoRARequest | None] | None,
    count: int,
) -> list[Any]:
    if lora_request is None:
        return one_each("adapter", adapter or None, count, (str, Mapping), "name or dict of scales")
    if adapter is not None:
        raise ValueError("lora_request and adapter name two adapters; give one of them")
    return one_each("lora_request", lora_request, count, LoRARequest, "LoRARequest")
