"""An engine in this process with streams that decode side by side: what they say, and how long a step of them takes."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from .figure import Stage, Unsupported
from .models import workplace
from .shapes import Checkpointed
from .stand_ins import provide_msgspec

if TYPE_CHECKING:
    from loraplex.engine.protocol import Tokens
    from loraplex.engine.startup.build import Engine

BLOCK: Final = 16
SEGMENTS: Final = 4
"""Parts of a measurement, of which the median counts."""
WARM_STEPS: Final = 6
"""Before anything is timed."""
PATIENCE_SECONDS: Final = 120.0
"""Without a token, after which streams are given up."""


@dataclass
class Stream:
    """What one request was told."""

    prompt: list[int]
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    """Of each prompt token but the first."""
    first: float | None = None
    """When its first token came."""
    ended: bool = False


class Served:
    """One engine, driven by this thread."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        """Until it is closed."""
        self.digests: list[str] = []
        """Of its adapters."""
        self.streams: dict[str, Stream] = {}
        self._names = count()

    def add(
        self, prompt: list[int], max_tokens: int, adapter: str | None = None, logprobs: bool = False,
        prompt_logprobs: bool = False,
    ) -> Stream:  # fmt: skip
        """A greedy request that ends with its last token and not before."""
        from loraplex.engine.protocol import AdapterRef, GenerateRequest
        from loraplex.engine.sampling_params import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, seed=0, logprobs=0 if logprobs else None,
            prompt_logprobs=0 if prompt_logprobs else None,
        )  # fmt: skip
        request: GenerateRequest = GenerateRequest(
            request_id=str(next(self._names)),
            prompt_token_ids=prompt,
            params=params,
            adapters=[] if adapter is None else [AdapterRef(adapter)],
        )
        self.engine.core.add(request)
        stream = self.streams[request.request_id] = Stream(prompt, max_tokens)
        return stream

    def step(self) -> None:
        """Begin or end a step. RuntimeError when a request failed."""
        from loraplex.engine.protocol import RequestFailed, Tokens

        self.engine.adapters.poll()
        for message in self.engine.core.step():
            if isinstance(message, RequestFailed):
                raise RuntimeError(f"a request failed: {message.message}")
            assert isinstance(message, Tokens)
            self._take(message)
        if not self.engine.core.progressed:
            time.sleep(0.0005)

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Until all streams have ended, or sooner. RuntimeError when nothing comes any more."""
        last, known = time.monotonic(), self.said
        while not (until() if until is not None else not self.engine.core.has_work()):
            self.step()
            if self.said != known:
                last, known = time.monotonic(), self.said
            elif time.monotonic() - last > PATIENCE_SECONDS:
                raise RuntimeError(f"no token came for {PATIENCE_SECONDS:.0f} s")

    @property
    def said(self) -> int:
        """Tokens of all streams."""
        return sum(len(stream.tokens) for stream in self.streams.values())

    def clear(self) -> None:
        """End all streams, and what runs of them on the device."""
        for name in self.streams:
            self.engine.core.abort(name)
        while self.engine.core.has_work():
            self.engine.core.step()
        self.streams = {}

    def decode(self, sequences: int, context: int, steps: int, adapters: Sequence[str | None] = (None,)) -> float:
        """Seconds of a step that decodes `sequences` streams of `context` tokens, which take the adapters in turn."""
        self.start(sequences, context, steps, adapters)
        taken = []
        for _ in range(SEGMENTS):
            began = time.perf_counter()
            for _ in range(max(1, steps // SEGMENTS)):
                self.step()
            taken.append((time.perf_counter() - began) / max(1, steps // SEGMENTS))
        self.clear()
        return statistics.median(taken)

    def start(self, sequences: int, context: int, steps: int, adapters: Sequence[str | None] = (None,)) -> None:
        """Streams whose prompts are computed and that decode at about `context` tokens for `steps` more steps."""
        source = random.Random(0)
        length = max(1, context - steps // 2 - WARM_STEPS)
        vocabulary = self.engine.info.vocab_size
        # Those that begin early decode on while the last prompts are computed.
        prompts = 2 * sequences * length // self.engine.core.scheduler.limits.max_num_batched_tokens
        budget = sequences + prompts + steps + 4 * WARM_STEPS
        added = [
            self.add(random_tokens(source, length, vocabulary), budget, adapters[number % len(adapters)])
            for number in range(sequences)
        ]
        self.run(until=lambda: all(stream.tokens for stream in added))
        for _ in range(WARM_STEPS):
            self.step()
        if any(stream.ended for stream in added):
            raise RuntimeError("a stream ended before it was timed")

    def _take(self, message: "Tokens") -> None:
        stream = self.streams.get(message.request_id)
        if stream is None:
            return
        if stream.first is None and message.token_ids:
            stream.first = time.perf_counter()
        stream.tokens += message.token_ids
        stream.logprobs += [entry.logprob for entry in message.logprobs or ()]
        stream.prompt_logprobs += [entry.logprob for entry in message.prompt_logprobs or () if entry is not None]
        stream.ended |= message.finish_reason is not None


@contextmanager
def serve(stage: Stage, model: Checkpointed, folders: Sequence[Path] = (), **settings: Any) -> Iterator[Served]:
    """An engine of `model` with the adapters of these folders. Raises Unsupported where it cannot run here."""
    build = _import_engine()
    _give_back(stage)
    from loraplex.engine.config import EngineConfig
    from loraplex.engine.model.config import base_signature
    from loraplex.lora.inspection.inspection import inspect_adapter

    folder = model.make(stage.device, workplace(model.bytes))
    defaults = {
        "max_num_seqs": 64, "max_num_batched_tokens": 2048, "adapter_memory": 1 << 20, "adapter_host_memory": 0,
        "enable_prefix_caching": False, "max_queue": 1 << 20,
    }  # fmt: skip
    try:
        engine = build(EngineConfig(model=str(folder), device=stage.device.type, **defaults | settings))
    except ValueError as error:
        raise Unsupported(f"the engine refuses to start: {error}") from None
    served = Served(engine)
    try:
        for path in folders:
            config = (path / "adapter_config.json").read_bytes()
            found = inspect_adapter(config, path / "adapter_model.safetensors", base_signature(folder))
            if found.manifest is None:
                raise RuntimeError(f"{path.name} is refused: {found.findings}")
            engine.adapters.register(found.manifest.digest, str(path))
            served.digests.append(found.manifest.digest)
        yield served
    finally:
        engine.close()
        # Whoever measured with it still has `served`, and measures on: the card's memory must be free then.
        del engine, served.engine
        _give_back(stage)


def _give_back(stage: Stage) -> None:
    """What nobody holds any more, to the device."""
    gc.collect()
    if stage.device.type == "cuda":
        torch.cuda.empty_cache()


def _import_engine() -> Callable[..., "Engine"]:
    provide_msgspec()
    try:
        from loraplex.engine.startup.build import build_engine
    except ModuleNotFoundError as error:
        raise Unsupported(f"the engine needs the package {error.name}") from error
    return build_engine


def random_tokens(source: random.Random, length: int, vocabulary: int) -> list[int]:
    return [source.randrange(2, vocabulary) for _ in range(length)]


def blocks_for(sequences: int, tokens: int) -> int:
    """KV blocks for as many sequences of so many tokens, the padding block among them."""
    return 1 + sequences * -(-tokens // BLOCK)
