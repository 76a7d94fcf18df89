"""LLMEngine: the engine inside your own process, step by step, with vLLM's names. LLM is a loop around it."""

import gc
import itertools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ..device.threads import prepare_environment
from ..protocol import EngineInfo, EngineStatus, RequestFailed, Tokens
from ..sampling_params import SamplingParams
from ..text.tokenizer import Tokenizer
from .adapter_book import AdapterBook
from .arguments import EngineArgs, check_level, check_tags
from .collector import Collector
from .lora_request import LoRARequest
from .outputs import RequestOutput
from .pooling.collector import PooledCollector
from .prompts import Adapter, Prompt
from .requests import RequestMaker

if TYPE_CHECKING:
    from ..startup.build import Engine

LOADING_SECONDS: Final = 0.001
"""Pause between steps while all work waits for adapters that load."""


class LLMEngine:
    """One base model and its adapters. Close it, or use it in a `with`, to free its memory.

    Any thread may call it: each call has the engine to itself.
    """

    def __init__(self, arguments: EngineArgs, adapters: Mapping[str, str | Path] | None = None) -> None:
        """ValueError says which model, adapter or setting cannot be used, and why."""
        prepare_environment()
        self._config = config = arguments.create_engine_config()
        self.model_folder = Path(config.model)
        self.tokenizer_folder = Path(config.tokenizer or config.model)
        tokenizer = Tokenizer(self.tokenizer_folder)
        self.adapters = AdapterBook(self.model_folder, tokenizer)
        self._engine: Engine | None = None
        self._asleep = False
        self._alone = threading.RLock()
        try:
            for name, folder in (adapters or {}).items():
                self.adapters.add(name, folder)
            self._engine = self._build()
        except BaseException:
            self.adapters.close()
            raise
        self.requests = RequestMaker(tokenizer, self.adapters, self._engine.info)
        self._live: dict[str, Collector | PooledCollector] = {}
        self._numbers = itertools.count()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        return cls(engine_args)

    @property
    def engine(self) -> "Engine":
        """With token ids in and out. ValueError when this is closed, or sleeps."""
        if self._asleep:
            raise ValueError("this engine sleeps; call wake_up() first")
        if self._engine is None:
            raise ValueError("this engine is closed; make a new one")
        return self._engine

    @property
    def tokenizer(self) -> Tokenizer:
        return self.requests.tokenizer

    @property
    def info(self) -> EngineInfo:
        """What was chosen at the start: dtype, compute path, sizes."""
        return self.engine.info

    def status(self) -> EngineStatus:
        """Counters and residency, as the server's dashboard shows them."""
        return self.engine.core.status()

    def add_adapter(self, name: str, folder: str | Path) -> None:
        """Requests may name it from now on. ValueError has every reason why it cannot be used."""
        with self._alone:
            engine, spec = self.engine, self.adapters.add(name, folder)
            engine.adapters.register(spec.digest, spec.path)

    def learn(self, adapters: Iterable[Adapter | LoRARequest | None]) -> None:
        """Load those of LoRARequests that are new. ValueError as add_adapter()."""
        engine = self.engine
        for adapter in adapters:
            spec = self.adapters.learn(adapter) if isinstance(adapter, LoRARequest) else None
            if spec is not None:
                engine.adapters.register(spec.digest, spec.path)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> None:
        """Begins with the next step. ValueError for what can never run, and for an id that is in use."""
        with self._alone:
            self.learn([lora_request])
            self.start(self.requests.make(request_id, prompt, params, lora_request, priority))

    def start(self, collector: Collector | PooledCollector) -> None:
        """ValueError as add_request()."""
        request = collector.request
        if request.request_id in self._live:
            raise ValueError(f"a request {request.request_id!r} is running; give each request an id of its own")
        self.engine.core.add(request)
        self._live[request.request_id] = collector

    def step(self) -> list[RequestOutput]:
        """Run one step; what is new of each generating request, by the `output_kind` of its parameters."""
        with self._alone:
            news = [collector.news() for collector in self.advance() if isinstance(collector, Collector)]
        return [output for output in news if output is not None]

    def advance(self) -> list[Collector | PooledCollector]:
        """Run one step; the requests that got something or ended, each once."""
        engine = self.engine
        engine.adapters.poll()
        changed: dict[str, Collector | PooledCollector] = {}
        for message in engine.core.step():
            if not isinstance(message, Tokens | RequestFailed) or message.request_id not in self._live:
                continue
            collector = changed[message.request_id] = self._live[message.request_id]
            if isinstance(message, RequestFailed):
                collector.fail(message)
            elif collector.take(message):
                engine.core.abort(message.request_id, message.index)
            if collector.finished:
                del self._live[message.request_id]
        if not engine.core.progressed:
            time.sleep(LOADING_SECONDS)
        return list(changed.values())

    def has_unfinished_requests(self) -> bool:
        return bool(self._live) or self.engine.core.has_work()

    def get_num_unfinished_requests(self) -> int:
        return len(self._live)

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """What is ended already, or unknown, is fine."""
        with self._alone:
            for request_id in [request_ids] if isinstance(request_ids, str) else list(request_ids):
                if self._live.pop(request_id, None) is not None:
                    self.engine.core.abort(request_id)

    def alone(self) -> AbstractContextManager[bool]:
        """Within it no other thread's call gets in."""
        return self._alone

    def next_id(self) -> str:
        return str(next(self._numbers))

    def sleep(self, level: int = 1) -> None:
        """Free the model, the cache and the adapters until wake_up(), which reads their files again. vLLM's levels 1
        and 2 are the same here. ValueError while requests run."""
        check_level(level)
        with self._alone:
            if self._asleep:
                return
            engine = self.engine
            if self.has_unfinished_requests():
                raise ValueError("requests are running: end or abort them before sleep()")
            engine.close()
            self._engine, self._asleep = None, True
            del engine
            gc.collect()

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Load the model and the adapters again; nothing where it is awake. ValueError when they cannot be loaded, and
        for `tags` that are only a part of weights and kv_cache."""
        check_tags(tags)
        with self._alone:
            if self._asleep:
                self._engine, self._asleep = self._build(), False

    def is_sleeping(self) -> bool:
        return self._asleep

    def close(self) -> None:
        """Free the model, the cache and the adapters. Closing twice is no error; generating afterwards is."""
        if self._engine is not None:
            self._engine.close()
        self._engine, self._asleep = None, False
        self.adapters.close()

    def _build(self) -> "Engine":
        from ..startup.build import build_engine

        engine = build_engine(self._config)
        for spec in self.adapters.specs:
            engine.adapters.register(spec.digest, spec.path)
        return engine

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
