"""A deterministic engine without a model: the real scheduler and block pool, a runner whose cache can be checked.

The fake model chains a hash over (salt, every token so far with the adapters that act on it and their scales). The
cache holds, for each slot, the hash up to its token; the next token is read from the slot of the last one. So any
mistake in scheduling, caching, sharing or copying reads a wrong hash: the runner notices it at once, and the tokens
differ from those of the solo run.
"""

import random
import zlib
from dataclasses import dataclass, field
from functools import cache

from loraplex.engine.block_pool import BlockPool
from loraplex.engine.core import EngineCore
from loraplex.engine.plan import Scheduled, StepPlan, StepResult
from loraplex.engine.protocol import (
    AdapterRef,
    FinishReason,
    FromEngine,
    GenerateRequest,
    RequestFailed,
    TokenLogprob,
    Tokens,
)
from loraplex.engine.roster import AdapterResidency
from loraplex.engine.sampling import SamplingParams
from loraplex.engine.sampling_state import Sampled, SampleRow
from loraplex.engine.scheduler import Limits, Scheduler
from loraplex.engine.sequence import Sequence, choice_seed

VOCAB = 50
EOS = 0
MASK = (1 << 64) - 1
INVOKING = 7
INVOCATIONS: dict[str, tuple[int, ...]] = {"late": (INVOKING,), "latest": (INVOKING, INVOKING)}
"""Adapters that act on a prompt from the last occurrence of these tokens on."""


def starts_of(message: GenerateRequest) -> list[int] | None:
    """The first token that each adapter acts on; None where the prompt lacks the tokens of one."""
    prompt, starts = tuple(message.prompt_token_ids), []
    for adapter in message.adapters:
        sought = INVOCATIONS.get(adapter.digest, ())
        found = [start for start in range(len(prompt)) if prompt[start : start + len(sought)] == sought]
        if not found:
            return None
        starts.append(found[-1] if sought else 0)
    return starts


def root_state(message: GenerateRequest) -> int:
    return zlib.crc32(message.cache_salt.encode())


def influence(message: GenerateRequest, starts: list[int] | None, position: int) -> int:
    """What the adapters that act on a token, in their order, do to it; 0 where none does."""
    assert starts is not None, "it runs without its adapter"
    acting = [(adapter, start) for adapter, start in zip(message.adapters, starts, strict=True) if start <= position]
    return _influence(*[(adapter.digest, adapter.scale) for adapter, _ in acting]) if acting else 0


@cache
def _influence(*acting: tuple[str, float]) -> int:
    return zlib.crc32(repr(acting).encode())


def next_state(state: int, token_id: int, influence: int = 0) -> int:
    """Content of a slot: depends on everything before it."""
    state ^= influence << 32
    state = ((state ^ (token_id + 1)) * 0x9E3779B97F4A7C15) & MASK
    return state ^ (state >> 29)


def draw(state: int, row: SampleRow) -> int:
    """The next token; siblings with their own seeds part ways when they sample."""
    salt = row.seed * 31 + row.position if row.params.temperature else 0
    token_id = next_state(state, salt % 997) % VOCAB
    while token_id in row.blocked_token_ids:
        token_id = (token_id + 1) % VOCAB
    return token_id


def solo(message: GenerateRequest, index: int, max_model_len: int) -> tuple[list[int], FinishReason]:
    """What a choice must say, computed without an engine."""
    params, starts = message.params, starts_of(message)
    if starts is None:
        return [], FinishReason.ERROR
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    state = root_state(message)
    for position, token_id in enumerate(message.prompt_token_ids):
        state = next_state(state, token_id, influence(message, starts, position))
    most = max_model_len - len(message.prompt_token_ids)
    most = most if params.max_tokens is None else min(most, params.max_tokens)
    output: list[int] = []
    while len(output) < most:
        blocked = tuple(ends) if len(output) < params.min_tokens else ()
        seed = choice_seed(params.seed or 0, index)
        output.append(draw(state, SampleRow(params, seed, len(output), [], [], blocked)))
        if output[-1] in ends:
            return output, FinishReason.STOP
        position = len(message.prompt_token_ids) + len(output) - 1
        state = next_state(state, output[-1], influence(message, starts, position))
    return output, FinishReason.LENGTH


class FakeRunner:
    """Checks every plan against the scheduler's promises while it runs it."""

    def __init__(self, pool: BlockPool, limits: Limits) -> None:
        self._pool = pool
        self._limits = limits
        self._slots: list[int | None] = [None] * (pool.num_blocks * pool.block_size)
        self.broken: Exception | None = None
        """Raised instead of running, once."""
        self.poisoned: set[str] = set()
        """Ids of requests whose logits are not finite."""
        self.mistake: Exception | None = None
        """What was wrong with a plan: the core takes it for a failed step, the harness does not."""

    def run(self, plan: StepPlan) -> StepResult:
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error
        try:
            return self._run(plan)
        except Exception as error:
            self.mistake = error
            raise

    def _run(self, plan: StepPlan) -> StepResult:
        self._check(plan)
        for source, destination in plan.copies:
            self._copy(source, destination)
        states = [self._write(item) for item in plan.scheduled]
        for item, expected in zip(plan.scheduled, states, strict=True):
            self._attend(item, expected)
        return StepResult(self._sample(plan), self._prompt_logprobs(plan))

    def _check(self, plan: StepPlan) -> None:
        sequences = [item.sequence for item in plan.scheduled]
        assert len(set(sequences)) == len(sequences) <= self._limits.max_num_seqs
        assert sum(item.count for item in plan.scheduled) <= self._limits.max_num_batched_tokens
        sources, destinations = ({pair[side] for pair in plan.copies} for side in (0, 1))
        assert not sources & destinations and len(destinations) == len(plan.copies)
        for item in plan.scheduled:
            assert item.count > 0 and item.start == item.sequence.num_computed
            assert item.start + item.count <= len(item.sequence.token_ids)

    def _copy(self, source: int, destination: int) -> None:
        size = self._pool.block_size
        self._slots[destination * size : (destination + 1) * size] = self._slots[source * size : (source + 1) * size]

    def _write(self, item: Scheduled) -> list[int]:
        """Fill the slots of the new tokens; the hashes of all tokens up to the last one."""
        states = chain(item.sequence, item.start + item.count)
        for position in range(item.start, item.start + item.count):
            block = item.sequence.blocks[position // self._pool.block_size]
            assert self._pool.references(block) == 1 and not self._pool.is_published(block), "wrote a shared block"
            self._slots[self._slot(item.sequence, position)] = states[position]
        return states

    def _attend(self, item: Scheduled, expected: list[int]) -> None:
        for position, state in enumerate(expected):
            found = self._slots[self._slot(item.sequence, position)]
            assert found == state, f"{item.sequence.request.id}: position {position} holds another prefix"

    def _sample(self, plan: StepPlan) -> Sampled:
        items = [item for item in plan.scheduled if item.sample]
        states = [self._slots[self._slot(item.sequence, item.start + item.count - 1)] or 0 for item in items]
        token_ids = [draw(state, row) for state, row in zip(states, plan.sample_rows(), strict=True)]
        failed = [row for row, item in enumerate(items) if item.sequence.request.id in self.poisoned]
        logprobs = [
            None if row.logprobs is None else TokenLogprob(token_id, -float(row.position), 1)
            for token_id, row in zip(token_ids, plan.sample_rows(), strict=True)
        ]
        return Sampled(token_ids, logprobs, failed)

    def _prompt_logprobs(self, plan: StepPlan) -> dict[int, list[TokenLogprob]]:
        return {
            index: [TokenLogprob(item.sequence.token_ids[p], -float(p), 1) for p in item.prompt_targets]
            for index, item in enumerate(plan.scheduled)
            if item.prompt_targets
        }

    def _slot(self, sequence: Sequence, position: int) -> int:
        block, offset = divmod(position, self._pool.block_size)
        return sequence.blocks[block] * self._pool.block_size + offset


def chain(sequence: Sequence, count: int) -> list[int]:
    message = sequence.request.message
    state, starts, states = root_state(message), starts_of(message), []
    for position, token_id in enumerate(sequence.token_ids[:count]):
        state = next_state(state, token_id, influence(message, starts, position))
        states.append(state)
    return states


class FakeAdapters:
    """Residency of a few adapters in `capacity` places; loads end when the test says so, or at once."""

    def __init__(self, capacity: int = 2, instant: bool = True) -> None:
        self.capacity = capacity
        self.instant = instant
        self.registered: set[str] = set()
        self.loading: set[str] = set()
        self.failed: dict[str, str] = {}
        self.pinned: set[str] = set()
        self.changing: set[str] = set()
        self.vocab_sizes: dict[str, int] = {}
        """Adapters that do more than add to the base's outputs."""
        self.held: dict[str, int] = {}
        """Resident adapters, least recently used first, and how often they are held."""

    def register(self, *digests: str) -> None:
        self.registered.update(digests)

    def acquire(self, digests: tuple[str, ...]) -> bool:
        here = [self._is_here(digest) for digest in digests]
        if all(here):
            for digest in digests:
                self.held[digest] = self.held.pop(digest) + 1
        return all(here)

    def is_additive(self, digest: str) -> bool:
        assert self.held[digest]
        return digest not in self.changing

    def vocab_size(self, digest: str) -> int:
        assert self.held[digest]
        return self.vocab_sizes.get(digest, 1 << 30)

    def invocation_tokens(self, digest: str) -> tuple[int, ...]:
        assert self.held[digest]
        return INVOCATIONS.get(digest, ())

    def _is_here(self, digest: str) -> bool:
        if digest in self.held:
            return True
        if digest in self.registered and digest not in self.failed and digest not in self.loading and self._make_room():
            self.loading.add(digest)
            if self.instant:
                self.finish_load(digest)
        return digest in self.held

    def release(self, digest: str) -> None:
        assert self.held[digest] > 0, f"{digest} released twice"
        self.held[digest] -= 1
        if digest not in self.registered and not self.held[digest]:
            del self.held[digest]

    def failure(self, digest: str) -> str | None:
        if digest not in self.registered:
            return f"no adapter {digest} is registered"
        return self.failed.get(digest)

    def finish_load(self, digest: str, error: str | None = None) -> None:
        self.loading.remove(digest)
        if digest not in self.registered:
            return
        if error is None:
            self.held[digest] = 0
        else:
            self.failed[digest] = error

    def unregister(self, digest: str) -> None:
        """Those who hold it keep it."""
        self.registered.discard(digest)
        self.failed.pop(digest, None)
        self.pinned.discard(digest)
        if self.held.get(digest) == 0:
            del self.held[digest]

    def evict(self, digest: str) -> None:
        if self.held.get(digest) == 0 and digest not in self.pinned:
            del self.held[digest]

    def _make_room(self) -> bool:
        if len(self.held) + len(self.loading) < self.capacity:
            return True
        idle = next((d for d, count in self.held.items() if not count and d not in self.pinned), None)
        if idle is not None:
            del self.held[idle]
        return idle is not None


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
        **limits: object,
    ) -> None:
        """`residency` takes the place of the fake adapters."""
        self.now = 0.0
        self.limits = make_limits(**limits)
        self.pool = BlockPool(num_blocks, block_size)
        self.adapters = adapters or FakeAdapters()
        self.scheduler = Scheduler(self.limits, self.pool, residency or self.adapters, clock=lambda: self.now)
        self.roster = self.scheduler.roster
        self.runner = FakeRunner(self.pool, self.limits)
        self.core = EngineCore(self.scheduler, self.runner, strict=True)
        self.streams: dict[str, Stream] = {}

    def add(self, message: GenerateRequest) -> Stream:
        self.core.add(message)
        count = message.params.n
        expected = [self.solo(message, index) for index in range(count)]
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

    def drain(self, most_steps: int = 10_000) -> int:
        """Step until nothing is left; every step makes progress. Returns the number of steps."""
        for step in range(most_steps):
            if not self.core.has_work():
                return step
            messages = self.step()
            assert self.core.progressed or messages, "a step without progress"
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
        assert not self.core.has_work() and self.roster.check_integrity() == []
        assert self.pool.num_free == self.pool.num_usable
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
    **params: object,
) -> GenerateRequest:
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        params=SamplingParams(**({"temperature": 0.0, "max_tokens": 8, "seed": 1} | params)),  # type: ignore[arg-type]
        adapters=[AdapterRef(name, scale) for name in ((adapter,) if isinstance(adapter, str) else adapter or ())],
        tenant=tenant,
        cache_salt=tenant,
        priority=priority,
    )
