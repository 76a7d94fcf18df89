"""LLM: the engine inside your own process, for scripts and tests. Text in, text out, prompts in order."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..cache_paths import user_cache
from ..config import ADAPTER_SHARE, EngineConfig
from ..device.threads import prepare_environment
from ..model.config import base_signature
from ..model.folder import resolve_model_folder
from ..protocol import AdapterRef, EngineInfo, EngineStatus, GenerateRequest, RequestFailed, Tokens
from ..sampling_params import SamplingParams
from ..scheduler.activation import explain_absence, find_start
from ..scheduler.admission import most_tokens
from ..text.tokenizer import Tokenizer
from .adapter_files import prepare_adapter
from .collector import Collector
from .outputs import RequestOutput
from .prompts import Adapter, Prompt, one_each, read_adapters, read_prompts

if TYPE_CHECKING:
    from ..startup.build import Engine

UNLIMITED: Final = 1 << 30
LOADING_SECONDS: Final = 0.001
"""Pause between steps while all work waits for adapters that load."""


class LLM:
    """One base model and its adapters. Close it, or use it in a `with`, to free its memory."""

    def __init__(
        self,
        model: str | Path,
        adapters: Mapping[str, str | Path] | None = None,
        dtype: str = "auto",
        max_model_len: int | None = None,
        kv_cache_memory: int | None = None,
        kv_cache_dtype: str = "auto",
        seed: int = 0,
        **settings: Any,
    ) -> None:
        """`model` is a folder or a hub id, `adapters` maps names to folders in PEFT layout, `settings` are further
        fields of EngineConfig. `seed` makes a whole program repeatable: requests without a seed draw theirs from it.
        An AdaLoRA, LoHa, LoKr or VeRA adapter becomes LoRA in a temporary folder, which goes with the LLM; the log says
        how exactly. With `weights_cache`, a folder, packed weights are kept there for the next time; without one,
        `quantization="awq"` keeps what it made in ~/.cache/loraplex/weights, and nothing else is kept.

        ValueError says which model, adapter or setting cannot be used, and why.
        """
        prepare_environment()
        from ..startup.build import build_engine

        folder = resolve_model_folder(str(model))
        self.tokenizer = Tokenizer(folder)
        config = EngineConfig(
            model=str(folder),
            dtype=dtype,
            max_model_len=max_model_len,
            kv_cache_memory=kv_cache_memory,
            kv_cache_dtype=kv_cache_dtype,
            seed=seed,
            **_defaults(settings) | settings,
        )
        with ExitStack() as scratch:
            base = base_signature(folder)
            files = {
                name: prepare_adapter(name, Path(path), base, scratch, folder)
                for name, path in (adapters or {}).items()
            }
            self._engine: Engine | None = build_engine(config)
            self._scratch = scratch.pop_all()
        self._manifests = {name: file.manifest for name, file in files.items()}
        for file in files.values():
            self._engine.adapters.register(file.manifest.digest, str(file.folder))
        self._count = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        adapter: Adapter | Sequence[Adapter | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """One RequestOutput per prompt, in their order. `params` and `adapter`: one for all, or one each.

        An adapter is a name, or a dict of names and scales: the sum of their deltas.

        ValueError, before anything runs, says which prompt, parameter or adapter is wrong. RuntimeError when the engine
        fails on a request; the others are ended too.
        """
        engine = self._opened()
        collectors = self._collectors(prompts, params, adapter)
        try:
            for collector in collectors:
                engine.core.add(collector.request)
            with _progress(len(collectors), use_tqdm) as advance:
                self._run(engine, collectors, advance)
        finally:
            for collector in collectors:
                engine.core.abort(collector.request.request_id)
        return [collector.output() for collector in collectors]

    @property
    def info(self) -> EngineInfo:
        """What was chosen at the start: dtype, compute path, sizes."""
        return self._opened().info

    def status(self) -> EngineStatus:
        """Counters and residency, as the server's dashboard shows them."""
        return self._opened().core.status()

    def close(self) -> None:
        """Free the model, the cache and the adapters. Closing twice is no error; generating afterwards is."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            self._scratch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> "Engine":
        if self._engine is None:
            raise ValueError("this LLM is closed; make a new one")
        return self._engine

    def _collectors(self, prompts: Prompt | Sequence[Prompt], params: object, adapter: object) -> list[Collector]:
        read = read_prompts(prompts, self.tokenizer)
        all_params = one_each("params", params, len(read), SamplingParams, SamplingParams())
        adapters = read_adapters(adapter, len(read))
        return [
            Collector(self._request(token_ids, params, adapter), text, adapter, self.tokenizer)
            for (text, token_ids), params, adapter in zip(read, all_params, adapters, strict=True)
        ]

    def _request(self, token_ids: list[int], params: SamplingParams, adapter: Adapter | None) -> GenerateRequest:
        self._count += 1
        request = GenerateRequest(
            request_id=str(self._count - 1),
            prompt_token_ids=token_ids,
            params=params,
            adapters=self._references(adapter, token_ids),
        )
        params.check()
        params.verify(most_tokens(self._opened().info.vocab_size, request))
        return request

    def _references(self, adapter: Adapter | None, prompt: list[int]) -> list[AdapterRef]:
        scales = {adapter: 1.0} if isinstance(adapter, str) else adapter or {}
        unknown = [name for name in scales if name not in self._manifests]
        if unknown:
            raise ValueError(f"there is no adapter {unknown[0]!r}; there are: {', '.join(self._manifests) or 'none'}")
        for name in scales:
            sought = self._manifests[name].invocation_tokens
            if find_start(prompt, sought) is None:
                text = self.tokenizer.decode(list(sought), skip_special_tokens=False)
                raise ValueError(explain_absence(repr(name), sought, text))
        return [AdapterRef(self._manifests[name].digest, scale) for name, scale in scales.items()]

    def _run(self, engine: "Engine", collectors: list[Collector], advance: Callable[[Collector], None]) -> None:
        live = {collector.request.request_id: collector for collector in collectors}
        while live or engine.core.has_work():
            engine.adapters.poll()
            for message in engine.core.step():
                if isinstance(message, RequestFailed):
                    kind = ValueError if message.kind == "invalid" else RuntimeError
                    raise kind(f"request {message.request_id} failed: {message.message}")
                if isinstance(message, Tokens) and message.request_id in live:
                    collector = live[message.request_id]
                    if collector.take(message):
                        engine.core.abort(message.request_id, message.index)
                    if collector.finished:
                        advance(live.pop(message.request_id))
            if not engine.core.progressed:
                time.sleep(LOADING_SECONDS)


def _defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of an LLM, where they are not EngineConfig's. AWQ takes minutes: what it made is kept without being asked."""
    kept = {"weights_cache": str(user_cache() / "weights")} if settings.get("quantization") == "awq" else {}
    share = {} if "adapter_memory" in settings else {"adapter_memory_share": ADAPTER_SHARE}
    return {"max_queue": UNLIMITED} | kept | share


@contextmanager
def _progress(total: int, shown: bool) -> Iterator[Callable[[Collector], None]]:
    """A bar of finished prompts with the tokens generated per second; yields what to call with each finished one."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    started, tokens = time.perf_counter(), 0
    with Progress(*columns, TextColumn("{task.fields[speed]}"), disable=not shown) as progress:
        task = progress.add_task("Generating", total=total, speed="")

        def advance(collector: Collector) -> None:
            nonlocal tokens
            tokens += collector.num_tokens
            speed = tokens / (time.perf_counter() - started)
            progress.update(task, advance=1, speed=f"{speed:.0f} tokens/s")

        yield advance
