"""StepPlan and StepResult: what the scheduler asks of the runner in one step, and the answer. Numbers, no tensors."""

from dataclasses import dataclass, field

from ..kv_cache.prefix import BlockKey
from ..pooling.vectors import Hidden
from ..pooling.wanted import PoolingKind
from ..protocol import RequestFailed, TokenLogprob
from ..sampling.state import Sampled, SampleRow
from ..status import Clipping
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot of a recurrent state that a step takes on its way."""

    position: int
    """After how many tokens of the sequence."""
    slot: int
    key: BlockKey


@dataclass(slots=True)
class Scheduled:
    """One sequence's part of a step: compute keys and values of token_ids[start : start + count]."""

    sequence: Sequence
    start: int
    count: int
    sample: bool
    """Draw the next token from the logits of the last of these tokens."""
    kept: list[Kept] = field(default_factory=list)
    """By position, ascending."""

    @property
    def makes_placeholder(self) -> bool:
        """Whether the token it draws is computed in its turn: any but the last that the length allows."""
        return self.sample and self.start + self.count + 1 < self.sequence.request.max_length

    @property
    def prompt_targets(self) -> range:
        """Positions whose token's log-probability is wanted; the logits at position p - 1 give that of position p."""
        if not self.sequence.needs_prompt_logprobs:
            return range(0)
        return range(self.start + 1, min(self.start + self.count + 1, self.sequence.prompt_length))

    @property
    def pooled(self) -> range:
        """Positions whose hidden states count for the vector that its request asks for."""
        pooling = self.sequence.request.message.pooling
        if pooling is None:
            return range(0)
        return pooling.positions(self.start, self.start + self.count, self.sequence.prompt_length)

    @property
    def pooled_by(self) -> PoolingKind | None:
        """What is made of those hidden states; None: nothing."""
        pooling = self.sequence.request.message.pooling
        return None if pooling is None else pooling.kind


@dataclass(slots=True)
class StepPlan:
    scheduled: list[Scheduled] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    """Whole KV blocks to copy, source to destination, before anything is written. No block is both."""
    failures: list[RequestFailed] = field(default_factory=list)
    """Requests that ended while planning: their adapters cannot be had."""
    state_copies: list[tuple[int, int]] = field(default_factory=list)
    """Recurrent states to copy, slot to slot, before any is read or written. No slot is both."""

    def sample_rows(self) -> list[SampleRow]:
        """One row for each scheduled sequence that samples, in their order. To be asked for before the commit."""
        return [
            item.sequence.row.at(item.start + item.count - item.sequence.prompt_length)
            for item in self.scheduled
            if item.sample
        ]


@dataclass(slots=True)
class StepResult:
    """The runner's answer to a StepPlan."""

    sampled: Sampled
    """One row for each of plan.sample_rows()."""
    prompt_logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    """By index into plan.scheduled: one entry for each of its prompt_targets."""
    pooled: dict[int, Hidden] = field(default_factory=dict)
    """By index into plan.scheduled, of the hidden states at its `pooled` positions, where it has any: their sum [C],
    the largest of each number [C], or all of them [positions, C], as its `pooled_by` says."""
    clipping: dict[str, Clipping] = field(default_factory=dict)
    """By digest, and by the empty word for the base alone; empty without static scales of the KV cache."""
    unusable: frozenset[int] = frozenset()
    """Indices into plan.scheduled whose keys or values are not finite and cannot be stored."""
    stale: frozenset[int] = frozenset()
    """Indices into plan.scheduled whose adapter had lost its place in memory as the step began."""
    model_seconds: float = 0.0
    """In which the host ran the model or waited for it; the rest of the step is host time."""
    device_seconds: float | None = None
    """That the device was at steps, as known since the result before; None where the host computes."""


@dataclass(slots=True)
class PlanBuilder:
    """A step while it is being planned."""

    budget: int
    """Tokens still to give."""
    grants: dict[Sequence, int] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)
    absent: dict[tuple[str, ...], str | None] = field(default_factory=dict)
    """Digests of adapters found not all to be resident; where it is known that they never will be, why."""
    postponed: bool = False
    """Blocks are short, and who gives way is chosen only when the results of all steps are known."""
    unfit: dict[str, str] = field(default_factory=dict)
    """Ids of requests that ask for what their adapters cannot do, and what that is."""

    def grant(self, sequence: Sequence, most: int) -> None:
        """Give it up to `most` more tokens, as far as it has any left and the budget allows."""
        granted = self.grants.get(sequence, 0)
        # The last of them draws a token, for which all must be known.
        count = min(most, sequence.remaining - granted - sequence.lacks_mask, self.budget)
        if count > 0:
            self.grants[sequence] = granted + count
            self.budget -= count

    def grant_decode(self, sequence: Sequence) -> None:
        """Give the one token that remains to a sequence that was given none, if the budget allows."""
        if self.budget:
            self.grants[sequence] = 1
            self.budget -= 1

    def revoke(self, sequence: Sequence) -> None:
        self.budget += self.grants.pop(sequence, 0)

    def finish(self) -> StepPlan:
        assert self.grants or not self.copies, "copies that no step would make"
        return StepPlan([_schedule(it, count) for it, count in self.grants.items()], self.copies + self._own_copies())

    def _own_copies(self) -> list[tuple[int, int]]:
        """Into the last blocks of those that go on from another choice."""
        copies = list[tuple[int, int]]()
        for sequence in self.grants:
            if sequence.copied_from is not None:
                copies.append((sequence.copied_from, sequence.blocks[-1]))
                sequence.copied_from = None
        return copies


def _schedule(sequence: Sequence, count: int) -> Scheduled:
    start = sequence.num_computed + sequence.num_submitted
    return Scheduled(sequence, start, count, start + count == sequence.num_tokens < sequence.request.max_length)
