"""An engine in this process, and how long it takes for given requests: no HTTP, no second process."""

import hashlib
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from loraplex.engine.config import EngineConfig
from loraplex.engine.ipc.server import HEARTBEAT_SECONDS, LOADING_MILLISECONDS
from loraplex.engine.model.config import base_signature
from loraplex.engine.processes.long_lived import keep_for_good
from loraplex.engine.protocol import AdapterRef, FromEngine, GenerateRequest, RequestFailed, Tokens
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.startup.build import Engine, build_engine
from loraplex.lora.files.digest import DIGEST_TAG, canonical_tensors
from loraplex.lora.files.manifest import BaseSignature
from loraplex.lora.files.values import read_bits
from loraplex.lora.inspection.inspection import WEIGHTS_FILE, inspect_adapter
from loraplex.lora.residency.weights import read_contents


@dataclass(frozen=True)
class Served:
    """What came of some requests."""

    seconds: float
    tokens: int
    first: list[float]
    """Of each request, seconds from its arrival until its first token."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


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
        # As the served process does.
        keep_for_good()

    def register(self, name: str, folder: Path) -> None:
        config = (folder / "adapter_config.json").read_bytes()
        inspection = inspect_adapter(config, folder / "adapter_model.safetensors", base_signature(self._model))
        assert inspection.manifest is not None, inspection.failures()
        self._digests[name] = inspection.manifest.digest
        self._engine.adapters.register(self._digests[name], str(folder))

    def register_all(self, adapters: Mapping[str, Path]) -> None:
        """Without judging them again: what the registry does at upload takes its time for a thousand."""
        with ThreadPoolExecutor() as pool:
            digests = pool.map(lambda folder: digest_of(folder, base_signature(self._model)), adapters.values())
            self._digests |= dict(zip(adapters, digests, strict=True))
        for name, folder in adapters.items():
            self._engine.adapters.register(self._digests[name], str(folder))

    @property
    def num_threads(self) -> int:
        return self._engine.info.num_threads

    @property
    def weight_bytes(self) -> int:
        return self._engine.info.weight_bytes

    def adapter_bytes(self) -> dict[str, int]:
        """What the pages of each resident adapter take, by name."""
        taken = {status.digest: status.bytes for status in self._engine.adapters.statuses()}
        return {name: taken[digest] for name, digest in self._digests.items()}

    def rank_bytes(self, ranks: int) -> int:
        """What so many ranks of all linears of the layers have to take: a row of A and one of B each."""
        base = base_signature(self._model)
        numbers = sum(inputs + outputs for inputs, outputs in base.linears.values())
        return ranks * base.num_layers * numbers * self._engine.adapters.table.arena.element_size()

    def count_loads(self) -> tuple[int, int]:
        """All loads, and those of them that came out of the host cache."""
        statuses = self._engine.adapters.statuses()
        return sum(status.loads for status in statuses), sum(status.host_loads for status in statuses)

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

    def rest(self, seconds: float) -> None:
        """Be without work for so long, as the server is then."""
        for _ in range(round(seconds / HEARTBEAT_SECONDS)):
            self._engine.adapters.poll()
            time.sleep(HEARTBEAT_SECONDS)

    def first_token_seconds(self, name: str | None, prompt_tokens: int = 32) -> float:
        """Of a request alone in the engine."""
        self._add([name], prompt_tokens, 1)
        started = time.perf_counter()
        while self._engine.core.has_work():
            self._step()
        return time.perf_counter() - started

    def serve(self, names: Sequence[str | None], streams: int, prompt_tokens: int, max_tokens: int) -> Served:
        """One request for each name, `streams` of them at a time."""
        waiting, arrived, first, running = list(reversed(names)), dict[str, float](), list[float](), 0
        started = time.perf_counter()
        while waiting or running:
            while waiting and running < streams:
                self._add([waiting.pop()], prompt_tokens, max_tokens)
                arrived[str(self._count)] = time.perf_counter()
                running += 1
            for message in self._step():
                if isinstance(message, Tokens):
                    if message.request_id in arrived:
                        first.append(time.perf_counter() - arrived.pop(message.request_id))
                    running -= message.finish_reason is not None
        return Served(time.perf_counter() - started, len(names) * max_tokens, first)

    def close(self) -> None:
        self._engine.close()

    def _step(self) -> list[FromEngine]:
        self._engine.adapters.poll()
        messages = self._engine.core.step()
        assert not any(isinstance(message, RequestFailed) for message in messages), messages
        if not self._engine.core.progressed:
            # As the server does: the loader thread needs the interpreter.
            time.sleep(LOADING_MILLISECONDS / 1000)
        return messages

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


def digest_of(folder: Path, base: BaseSignature) -> str:
    """The digest of an adapter that is known to be good."""
    seen = hashlib.sha256(DIGEST_TAG)
    with (folder / WEIGHTS_FILE).open("rb", buffering=0) as file:
        for facts, tensor in canonical_tensors(read_contents(folder, base, "F32", None).modules):
            seen.update(facts)
            seen.update(read_bits(file, tensor).data)
    return seen.hexdigest()
