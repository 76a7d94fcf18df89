"""Harness: a deterministic engine without a model, the real scheduler and block pool between fakes.

What it says must be what each request would be told alone.
"""

import random
from dataclasses import dataclass, field

from loraplex.engine.core import EngineCore
from loraplex.engine.kv_cache.block_pool import BlockPool
from loraplex.engine.kv_cache.state_pool import StatePool
from loraplex.engine.protocol import (
    AdapterRef,
    BeamSearch,
    FinishReason,
    FromEngine,
    GenerateRequest,
    RequestFailed,
    Tokens,
)
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.scheduler.request_table import AdapterResidency
from loraplex.engine.scheduler.scheduler import Limits, Scheduler

from .fake_adapters import FakeAdapters
from .fake_model import EOS, VOCAB, solo, solo_beams
from .fake_runner import FakeRunner
from .late_masks import LateMasks


@dataclass
class Stream:
    """What came back for one request."""

    message: GenerateRequest
    expected: list[tuple[list[int], FinishReason]]
    outputs: list[list[int]]
    reasons: list[FinishReason | None]
    messages: list[Tokens] = field(default_factory=list)
    failure: RequestFailed | None = None

    @property
    def ended(self) -> bool:
        return self.failure is not None or None not in self.reasons


class Harness:
    """An engine core with fakes around it. Checks every message as it comes and every stream against its solo run."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        adapters: FakeAdapters | None = None,
        residency: AdapterResidency | None = None,
        masks: LateMasks | None = None,
        states: StatePool | None = None,
        **limits: object,
    ) -> None:
        """`residency` takes the place of the fake adapters. Without `masks` no request may be constrained. With
        `states` the model has recurrent layers."""
        self.now = 0.0
        self.limits = make_limits(**limits)
        self.pool = BlockPool(num_blocks, block_size)
        self.adapters = adapters or FakeAdapters()
        self.states = states
        clock = lambda: self.now  # noqa: E731
        self.scheduler = Scheduler(self.limits, self.pool, residency or self.adapters, clock, states)
        self.request_table = self.scheduler.request_table
        self.runner = FakeRunner(self.pool, self.limits, states)
        self.masks = masks
        self.core = EngineCore(self.scheduler, self.runner, strict=True, grammar_manager=masks)
        self.streams: dict[str, Stream] = {}

    def add(self, message: GenerateRequest) -> Stream:
        self.receive(self.core.add(message))
        count = message.params.n
        expected = [self.solo(message, index) for index in range(count)]
        if message.beam_search is not None:
            expected = solo_beams(message, self.request_table.requests[message.request_id].max_length)
        stream = Stream(message, expected, [[] for _ in range(count)], [None] * count)
        self.streams[message.request_id] = stream
        return stream

    def abort(self, request_id: str, index: int | None = None) -> None:
        self.receive(self.core.abort(request_id, index))

    def step(self) -> list[FromEngine]:
        messages = self.core.step()
        if self.runner.mistake is not None:
            raise AssertionError("a plan was wrong") from self.runner.mistake
        self.now += 1.0
        self.receive(messages)
        return messages

    def step_on(self) -> None:
        """A step that must make progress, unless a mask is waited for."""
        messages = self.step()
        waits = self.masks is not None and self.masks.waited_for
        assert self.core.progressed or messages or waits, "a step without progress"

    def drain(self, most_steps: int = 10_000) -> int:
        """Step until nothing is left; every step makes progress. Returns the number of steps."""
        for step in range(most_steps):
            if not self.core.has_work():
                return step
            self.step_on()
        raise AssertionError(f"work left after {most_steps} steps")

    def receive(self, messages: list[FromEngine] | list[Tokens]) -> None:
        for message in messages:
            assert isinstance(message, Tokens | RequestFailed)
            stream = self.streams[message.request_id]
            assert not stream.ended, "a message after the last one"
            if isinstance(message, Tokens):
                self._take(stream, message)
            else:
                stream.failure = message

    def drain_some(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def assert_released(self) -> None:
        """Nothing is held any more."""
        assert not self.core.has_work() and self.request_table.check_integrity() == []
        assert self.pool.num_free == self.pool.num_usable
        assert self.states is None or self.states.num_free == self.states.num_usable
        assert not any(self.adapters.held.values())
        assert all(stream.ended for stream in self.streams.values())

    def _take(self, stream: Stream, message: Tokens) -> None:
        assert stream.reasons[message.index] is None, "a token after the choice's end"
        stream.messages.append(message)
        stream.outputs[message.index] += message.token_ids
        stream.reasons[message.index] = message.finish_reason
        expected, reason = stream.expected[message.index]
        output = stream.outputs[message.index]
        assert output == expected[: len(output)], "the stream differs from its solo run"
        if message.finish_reason not in (None, FinishReason.ABORT):
            assert (output, message.finish_reason) == (expected, reason)

    def solo(self, message: GenerateRequest, index: int) -> tuple[list[int], FinishReason]:
        capacity = self.pool.num_usable * self.pool.block_size + 1
        return solo(message, index, min(self.limits.max_model_len, capacity))


def make_limits(**changes: object) -> Limits:
    defaults: dict[str, object] = {
        "vocab_size": VOCAB,
        "max_model_len": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 16,
        "max_queue": 1000,
        "eos_token_ids": frozenset({EOS}),
        "fingerprint": "fake base",
    }
    return Limits(**(defaults | changes))  # type: ignore[arg-type]


def tokens(count: int, seed: int = 0) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(1, VOCAB) for _ in range(count)]


def make_request(
    request_id: str,
    prompt: list[int],
    adapter: str | tuple[str, ...] | None = None,
    tenant: str = "default",
    priority: int = 0,
    scale: float = 1.0,
    share: tuple[str, str] = ("", ""),
    beam_search: BeamSearch | None = None,
    **params: object,
) -> GenerateRequest:
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        params=SamplingParams(**({"temperature": 0.0, "max_tokens": 8, "seed": 1} | params)),  # type: ignore[arg-type]
        adapters=[AdapterRef(name, scale) for name in ((adapter,) if isinstance(adapter, str) else adapter or ())],
        tenant=tenant,
        share=share,
        cache_salt=tenant,
        priority=priority,
        beam_search=beam_search,
    )
