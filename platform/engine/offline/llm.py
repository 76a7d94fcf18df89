"""LLM: the engine inside your own process, for scripts and tests. Text in, text out, prompts in order."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..model.generation_defaults import generation_defaults
from ..protocol import BeamSearch, EngineInfo, EngineStatus
from ..sampling_params import SamplingParams
from ..text.tokenizer import Tokenizer
from .arguments import EngineArgs
from .beam_search import BeamSearchOutput, BeamSearchParams, as_beams
from .chat import Message, chat_prompts, transformers_tokenizer
from .collector import Collector
from .llm_engine import LLMEngine
from .lora_request import LoRARequest
from .outputs import RequestOutput
from .pooling.calls import PoolingCalls
from .progress import progress_bar
from .prompts import Adapter, Prompt, list_prompts, one_each

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Wanted = tuple[Prompt, SamplingParams, Adapter | LoRARequest | None, int, BeamSearch | None]
"""Prompt, parameters, adapter, priority and, instead of draws, the search for the most likely outputs."""


class LLM(PoolingCalls):
    """One base model and its adapters. Close it, or use it in a `with`, to free its memory.

    Calls from several threads run one after the other. One call with many prompts is the fast way.
    """

    def __init__(
        self,
        model: str | Path,
        adapters: Mapping[str, str | Path] | None = None,
        *,
        tokenizer: str | Path | None = None,
        dtype: str = "auto",
        quantization: str | None = None,
        max_model_len: int | None = None,
        kv_cache_memory: int | None = None,
        kv_cache_dtype: str = "auto",
        seed: int | None = 0,
        **settings: Any,
    ) -> None:
        """`model` is a folder or a hub id, `adapters` maps names to folders in PEFT layout, `settings` are further
        fields of EngineConfig, or vLLM's. `seed` makes a whole program repeatable: requests without a seed draw theirs
        from it. An AdaLoRA, LoHa, LoKr or VeRA adapter becomes LoRA in a temporary folder, which goes with the LLM; the
        log says how exactly. With `weights_cache`, a folder, packed weights are kept there for the next time; without
        one, `quantization="awq"` keeps what it made in ~/.cache/loraplex/weights, and nothing else is kept.

        TypeError for an unknown keyword, with the nearest one. ValueError says which model, adapter or setting cannot
        be used, and why.
        """
        arguments = EngineArgs(
            model,
            tokenizer=tokenizer,
            dtype=dtype,
            quantization=quantization,
            max_model_len=max_model_len,
            kv_cache_memory=kv_cache_memory,
            kv_cache_dtype=kv_cache_dtype,
            seed=seed,
            **settings,
        )
        self.llm_engine = LLMEngine(arguments, adapters)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams | None] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: int | Sequence[int] | None = None,
        params: SamplingParams | Sequence[SamplingParams | None] | None = None,
        adapter: Adapter | Sequence[Adapter | None] | None = None,
        strict: bool = False,
    ) -> list[RequestOutput]:
        """One RequestOutput per prompt, in their order. Parameters, adapters and priorities: one for all, or one each.

        `adapter` is a name, or a dict of names and scales: the sum of their deltas; `lora_request` brings the folder.
        `params` is another word for `sampling_params`; without either, get_default_sampling_params() counts. A lower
        `priority` runs earlier. `use_tqdm`: False for no bar, or what makes one, as tqdm.tqdm does.

        ValueError, before anything runs, says which prompt is wrong, and why. A request on which the engine fails comes
        back with finish_reason "error" and `error`; with `strict` it raises, ValueError for what is wrong with the
        request and else RuntimeError, and the others end too.
        """
        if sampling_params is not None and params is not None:
            raise ValueError("sampling_params and params are the same; give one of them")
        if lora_request is not None and adapter is not None:
            raise ValueError("lora_request and adapter name two adapters; give one of them")
        given = list_prompts(prompts)
        asked = one_each("sampling_params", sampling_params or params, len(given), SamplingParams, "SamplingParams")
        adapters: list[Any] = (
            one_each("adapter", adapter or None, len(given), (str, Mapping), "name or dict of scales")
            if lora_request is None
            else one_each("lora_request", lora_request, len(given), LoRARequest, "LoRARequest")
        )
        priorities = one_each("priority", priority, len(given), int, "integer")
        rows = zip(given, asked, adapters, priorities, strict=True)
        requests = [
            (prompt, own or self._default_params, name or None, rank or 0, None) for prompt, own, name, rank in rows
        ]
        return self._answer(requests, use_tqdm, strict)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        use_tqdm: bool | Callable[..., Any] = False,
        concurrency_limit: int | None = None,
        *,
        strict: bool = False,
    ) -> list[BeamSearchOutput]:
        """The `params.beam_width` most likely outputs of each prompt, best first. Errors are those of generate().

        `concurrency_limit` is vLLM's and has no effect: the engine runs as many at once as fit.
        """
        given = list_prompts(prompts)
        loras = one_each("lora_request", lora_request, len(given), LoRARequest, "LoRARequest")
        asked, search = params.sampling_params(), params.search()
        requests = [(prompt, asked, lora, 0, search) for prompt, lora in zip(given, loras, strict=True)]
        return [as_beams(output, self.tokenizer) for output in self._answer(requests, use_tqdm, strict)]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams | None] | None = None,
        *,
        chat_template: str | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **generating: Any,
    ) -> list[RequestOutput]:
        """As generate(), of one conversation or many, each a list of messages with `role` and `content`.

        `chat_template`, Jinja source, takes the place of the model's. ValueError for a model without a template, and
        for messages that it refuses.
        """
        prompts = chat_prompts(
            self.get_tokenizer(),
            messages,
            chat_template=chat_template,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **(chat_template_kwargs or {}),
        )
        return self.generate(prompts, sampling_params, **generating)

    def add_adapter(self, name: str, folder: str | Path) -> None:
        """Load one more adapter. ValueError has every reason why it cannot be used."""
        self.llm_engine.add_adapter(name, folder)

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """That of transformers."""
        return self._transformers_tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json says, else the defaults of SamplingParams."""
        return SamplingParams(**generation_defaults(self.llm_engine.model_folder))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.llm_engine.tokenizer

    @property
    def info(self) -> EngineInfo:
        """What was chosen at the start: dtype, compute path, sizes."""
        return self.llm_engine.info

    def status(self) -> EngineStatus:
        """Counters and residency, as the server's dashboard shows them."""
        return self.llm_engine.status()

    def sleep(self, level: int = 1) -> None:
        """Free the model, the cache and the adapters until wake_up(). Generating meanwhile is a ValueError."""
        self.llm_engine.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Load the model and its adapters again."""
        self.llm_engine.wake_up(tags)

    def close(self) -> None:
        """Free the model, the cache and the adapters. Closing twice is no error; generating afterwards is."""
        self.llm_engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _transformers_tokenizer(self) -> "PreTrainedTokenizerBase":
        return transformers_tokenizer(self.llm_engine.tokenizer_folder)

    @cached_property
    def _default_params(self) -> SamplingParams:
        return self.get_default_sampling_params()

    def _answer(
        self, requests: Sequence[Wanted], use_tqdm: bool | Callable[..., Any], strict: bool
    ) -> list[RequestOutput]:
        collectors = list[Collector]()
        with self.llm_engine.alone():
            self.llm_engine.learn(adapter for _, _, adapter, _, _ in requests)
            try:
                for place, wanted in enumerate(requests):
                    collectors.append(self._start(place, wanted))
                self._run(len(collectors), use_tqdm, strict)
            finally:
                self.llm_engine.abort_request(collector.request.request_id for collector in collectors)
        return [collector.output() for collector in collectors]

    def _start(self, place: int, wanted: Wanted) -> Collector:
        """ValueError names the prompt's place."""
        engine = self.llm_engine
        try:
            collector = engine.requests.make(engine.next_id(), *wanted)
            engine.start(collector)
        except ValueError as error:
            raise ValueError(f"prompt {place}: {error}") from error
        return collector

    def _run(self, total: int, use_tqdm: bool | Callable[..., Any], strict: bool) -> None:
        with progress_bar(total, use_tqdm) as advance:
            while self.llm_engine.has_unfinished_requests():
                for collector in self.llm_engine.advance():
                    failure = collector.failure
                    if strict and failure is not None:
                        kind = ValueError if failure.kind == "invalid" else RuntimeError
                        raise kind(f"request {failure.request_id} failed: {failure.message}")
                    if collector.finished:
                        advance(collector.num_tokens)
