"""An engine in this process, and how long it takes for given requests: no HTTP, no second process."""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from loraplex.engine.build import Engine, build_engine
from loraplex.engine.config import EngineConfig
from loraplex.engine.model.config import base_signature
from loraplex.engine.protocol import AdapterRef, GenerateRequest, RequestFailed
from loraplex.engine.sampling import SamplingParams
from loraplex.engine.server import LOADING_MILLISECONDS
from loraplex.lora.inspection import inspect_adapter


class MeasuredEngine:
    """`adapters` by name, all resident from the start. `extra` are settings of EngineConfig."""

    def __init__(self, model: Path, adapters: Mapping[str, Path], adapter_memory: int, **extra: object) -> None:
        settings = {"model": str(model), "enable_prefix_caching": False, "max_num_seqs": 64, **extra}
        self._engine: Engine = build_engine(EngineConfig(adapter_memory=adapter_memory, **settings))  # type: ignore[arg-type]
        self._model = model
        self._digests: dict[str, str] = {}
        self._count = 0
        for name, folder in adapters.items():
            self.register(name, folder)
            self.load(name)

    def register(self, name: str, folder: Path) -> None:
        config = (folder / "adapter_config.json").read_bytes()
        inspection = inspect_adapter(config, folder / "adapter_model.safetensors", base_signature(self._model))
        assert inspection.manifest is not None, inspection.failures()
        self._digests[name] = inspection.manifest.digest
        self._engine.adapters.register(self._digests[name], str(folder))

    def load(self, name: str) -> None:
        self._engine.adapters.load(self._digests[name])
        while not self._engine.adapters.resident(self._digests[name]):
            self._engine.adapters.poll()
            time.sleep(0.0005)

    def evict(self, name: str) -> None:
        self._engine.adapters.evict(self._digests[name])

    def decode_rate(self, names: Sequence[str | None], prompt_tokens: int, steps: int) -> float:
        """Tokens per second of one decoding sequence for each name, from the median step."""
        self._add(names, prompt_tokens, steps + 1)
        core, seconds = self._engine.core, []
        while core.has_work():
            before = core.scheduler.generation_tokens
            started = time.perf_counter()
            self._step()
            if core.scheduler.generation_tokens - before == len(names):
                seconds.append(time.perf_counter() - started)
        # The first of them still holds a part of a prompt, or fresh caches.
        return len(names) / statistics.median(seconds[1:])

    def prefill_rate(self, names: Sequence[str | None], prompt_tokens: int) -> float:
        """Prompt tokens per second, with one prompt for each name."""
        self._add(names, prompt_tokens, 1)
        started = time.perf_counter()
        while self._engine.core.has_work():
            self._step()
        return len(names) * prompt_tokens / (time.perf_counter() - started)

    def first_token_seconds(self, name: str | None, prompt_tokens: int = 32) -> float:
        """Of a request alone in the engine."""
        self._add([name], prompt_tokens, 1)
        started = time.perf_counter()
        while self._engine.core.has_work():
            self._step()
        return time.perf_counter() - started

    def close(self) -> None:
        self._engine.close()

    def _step(self) -> None:
        self._engine.adapters.poll()
        for message in self._engine.core.step():
            assert not isinstance(message, RequestFailed), message
        if not self._engine.core.progressed:
            # As the server does: the loader thread needs the interpreter.
            time.sleep(LOADING_MILLISECONDS / 1000)

    def _add(self, names: Sequence[str | None], prompt_tokens: int, max_tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        for index, name in enumerate(names):
            self._count += 1
            prompt = [(7 * self._count + 13 * index + position) % 997 + 3 for position in range(prompt_tokens)]
            refs = [] if name is None else [AdapterRef(self._digests[name])]
            request = GenerateRequest(
                request_id=str(self._count), prompt_token_ids=prompt, params=params, adapters=refs
            )
            self._engine.core.add(request)
