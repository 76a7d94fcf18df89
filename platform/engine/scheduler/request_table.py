"""RequestTable: who is live and where. The one place where blocks and adapters are taken and given back.

PENDING -> WAITING <-> RUNNING <-> PREEMPTED, and from each of them -> FINISHED
"""

import itertools
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from ..kv_cache.block_pool import BlockPool
from ..kv_cache.state_pool import StatePool
from ..pooling.classifier import Tensors
from ..protocol import RequestFailed
from .beam_search import Beam
from .fairness import PROMPT_WEIGHT, FairQueue
from .plan import Scheduled
from .preemption import choose_victim, overfull_share
from .sequence import Request, Sequence, Status
from .sequence_states import SequenceStates

MAX_PREEMPTIONS: Final = 3
"""A sequence that gave way this often comes back protected: all blocks it can ever need are set aside for it."""


class AdapterResidency(Protocol):
    """Where the scheduler asks for adapters. `lora/residency/pool.py: AdapterPool` implements it."""

    def acquire(self, digests: tuple[str, ...]) -> tuple[int, ...] | None:
        """The epoch of each, a number that no other load has: all are resident and stay so until released. None:
        not yet, and none is held; missing ones are loaded as soon as they can be."""

    def release(self, digest: str) -> None:
        """Give back one of those that an acquire gave an epoch for."""

    def failure(self, digest: str) -> str | None:
        """Why it cannot be had, in words: its load failed, or it is not registered. None while there is hope."""

    def is_additive(self, digest: str) -> bool:
        """Whether a held one only adds to the base's outputs, so that it can be scaled and summed with others."""

    def vocab_size(self, digest: str) -> int:
        """Tokens that the base knows with a held one: token ids are below it."""

    def score_head(self, digest: str) -> Tensors:
        """Classification head that a held one brings, by names of tensors; empty where it brings none."""

    def changes_logits(self, digest: str) -> bool:
        """Whether a held one changes what the lm_head makes of hidden states."""

    def invocation_tokens(self, digest: str) -> tuple[int, ...]:
        """Of a held one: it acts on a prompt from the last occurrence of these on; none: on all of it."""


@dataclass(slots=True)
class Placement:
    """Where a waiting sequence would start: blocks it shares, and one it copies because it will write into it."""

    sequence: Sequence
    shared: list[int] = field(default_factory=list)
    copied: int | None = None
    num_computed: int = 0
    state: int | None = None
    """Snapshot after its first num_computed tokens that it begins with."""
    matched: int = 0
    """Blocks that are cached, with a snapshot at their end or not."""

    @property
    def remaining(self) -> int:
        return len(self.sequence.token_ids) - self.num_computed


class RequestTable:
    def __init__(self, pool: BlockPool, adapters: AdapterResidency, states: StatePool | None = None) -> None:
        self.pool = pool
        self.states = SequenceStates(states, pool.block_size)
        self.requests: dict[str, Request] = {}
        self.queue = FairQueue()
        self.preempted: list[Sequence] = []
        """Most senior first."""
        self.running: list[Sequence] = []
        """Most senior first."""
        self.leaving: list[Sequence] = []
        """Ended, and still in a step in flight: what that uses is given back when it lands."""
        self.beam_searches: list[Request] = []
        """Those that run. Places and blocks for all their beams are set aside, so they never give way."""
        self.preemptions = 0
        self.unstarted: set[str] = set()
        """Ids of the requests that no choice of has been admitted yet."""
        self.just_started: list[str] = []
        """Ids of those that the last plan has admitted the first choice of."""
        self.adapters = adapters
        self._ranks = itertools.count()

    @property
    def in_flight(self) -> bool:
        """Whether a step has begun and not ended."""
        return bool(self.leaving) or any(sequence.in_flight for sequence in self.running)

    @property
    def places_taken(self) -> int:
        """With those that are set aside for beams."""
        return len(self.running) + self.places_aside

    @property
    def places_aside(self) -> int:
        """For beams that have not begun."""
        return sum(len(it.sequences) - len(it.running()) for it in self.beam_searches)

    def add(self, request: Request) -> None:
        self.requests[request.id] = request
        self.unstarted.add(request.id)
        request.shares = self.queue.open(request.message)
        self._enqueue(request.sequences[0])

    def fork(self, request: Request) -> None:
        """The prompt is computed: the other choices may start. Those of a beam search start with branch()."""
        for sequence in request.sequences if request.beam_search is None else ():
            if sequence.status is Status.PENDING:
                self._enqueue(sequence)

    def acquire_adapters(self, request: Request) -> bool:
        """Hold its adapters for a request until it ends."""
        epochs = self.adapters.acquire(request.digests)
        if epochs is not None:
            request.holds_adapters, request.epochs = True, epochs
        return request.holds_adapters

    def heads(self, request: Request) -> list[Tensors]:
        """Classification heads that its adapters, which it holds, bring."""
        return [head for digest in request.digests if (head := self.adapters.score_head(digest))]

    def fits(self, placement: Placement) -> bool:
        """Whether it can start now and leave each running sequence a block to grow into."""
        sequence = placement.sequence
        if not self.states.fits(sequence.request.places, self.places_aside):
            return False
        if sequence.request.beam_search is not None:
            wanted, headroom = sequence.request.beam_blocks(self.pool.block_size), 0
        elif self.protected(sequence):
            wanted, headroom = self.most_blocks(sequence), 0
        else:
            wanted = self.pool.blocks_for(len(sequence.token_ids))
            headroom = len(self.running) if wanted else 0
        taken = wanted - len(placement.shared) + self.pool.count_free(placement.shared)
        return taken + headroom <= self._spare()

    def start(self, placement: Placement) -> tuple[int, int] | None:
        """Run a sequence that fits, with blocks for all its tokens. Returns the block copy it needs, if any."""
        sequence = placement.sequence
        self.states.start(sequence, placement.state, sequence.request.places, self.places_aside)
        if sequence.request.id in self.unstarted:
            self.unstarted.remove(sequence.request.id)
            self.just_started.append(sequence.request.id)
            if sequence.request.beam_search is not None:
                self.beam_searches.append(sequence.request)
        self._leave(sequence)
        if sequence.rank < 0:
            sequence.rank = next(self._ranks)
            computed = min(placement.num_computed, sequence.prompt_length)
            self.queue.admit(sequence.request.shares, PROMPT_WEIGHT * (sequence.prompt_length - computed))
        self.pool.share(placement.shared)
        missing = self.pool.blocks_for(len(sequence.token_ids)) - len(placement.shared)
        sequence.blocks = placement.shared + [self.pool.allocate() for _ in range(missing)]
        sequence.num_computed = placement.num_computed
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=lambda running: running.rank)
        return None if placement.copied is None else (placement.copied, sequence.blocks[len(placement.shared)])

    def grow(self, sequence: Sequence) -> bool:
        """Make room for the newest token of a running sequence; False when no block is to be had."""
        if self.pool.blocks_for(sequence.num_tokens) <= len(sequence.blocks):
            return True
        if not self.protected(sequence) and self._spare() < 1:
            return False
        sequence.blocks.append(self.pool.allocate())
        return True

    def branch(self, request: Request, beams: Mapping[int, Beam]) -> None:
        """Each choice goes on with its beam. One that takes over another's output shares its full blocks, and gets a
        copy of the last."""
        for index, beam in beams.items():
            if index != beam.parent:
                self._take_over(request.sequences[index], request.sequences[beam.parent])
        for index, beam in beams.items():
            request.sequences[index].append(beam.token_id)

    def _take_over(self, sequence: Sequence, other: Sequence) -> None:
        if sequence.status is Status.PENDING:
            sequence.status, sequence.rank = Status.RUNNING, next(self._ranks)
            self.running.append(sequence)
        self.pool.free(sequence.blocks)
        full, partial = divmod(other.num_computed, self.pool.block_size)
        sequence.blocks = other.blocks[:full]
        self.pool.share(sequence.blocks)
        sequence.copied_from = other.blocks[full] if partial else None
        if partial:
            sequence.blocks.append(self.pool.allocate())
        self.states.take_over(sequence, other)
        sequence.become(other)

    def victim(self) -> Sequence:
        """Who gives way when blocks run out."""
        return choose_victim([sequence for sequence in self.running if not self.protected(sequence)])

    def place_holder(self, waiting: Sequence) -> Sequence | None:
        """Who gives its place to one that waits; None: nobody holds too many."""
        holders = overfull_share(self.running, waiting)
        candidates = [sequence for sequence in holders if not self.protected(sequence)]
        return choose_victim(candidates) if candidates else None

    def preempt(self, sequence: Sequence) -> None:
        """Take its blocks away. What it computed may be found again in the prefix cache. Not while in flight."""
        self._interrupt(sequence)
        sequence.status = Status.PREEMPTED
        insort(self.preempted, sequence, key=lambda waiting: waiting.rank)

    def give_up_place(self, sequence: Sequence) -> None:
        """As preempt(), but it waits for its turn in the queue: those it gave way to go first."""
        self._interrupt(sequence)
        self._enqueue(sequence)

    def finish(self, sequence: Sequence) -> None:
        """End one choice; with the last one ends the request. What a step in flight uses is held until it lands."""
        self._leave(sequence)
        sequence.status = Status.FINISHED
        request = sequence.request
        if not request.unfinished():
            self._end(request)

    def take_off(self, items: Iterable[Scheduled]) -> None:
        """A step with these sequences begins, and more may be planned before its result is known."""
        for item in items:
            item.sequence.num_submitted += item.count
            item.sequence.num_placeholders += item.makes_placeholder

    def land(self, items: Iterable[Scheduled]) -> None:
        """Their step has ended, well or not: give back what only it still used."""
        for item in items:
            sequence = item.sequence
            sequence.num_submitted -= item.count
            sequence.num_placeholders -= item.makes_placeholder
            if sequence.status is Status.FINISHED and not sequence.in_flight:
                self.leaving.remove(sequence)
                self._empty(sequence)
                self._release_adapters(sequence.request)

    def fail(self, request: Request, kind: str, message: str, param: str | None = None) -> RequestFailed:
        """End the whole request; what it computed is never found again."""
        for sequence in request.unfinished():
            self.pool.forget(sequence.blocks)
            self.states.forget(sequence)
            self.finish(sequence)
        return RequestFailed(request_id=request.id, kind=kind, message=message, param=param)

    def protected(self, sequence: Sequence) -> bool:
        """Whether it never gives way."""
        return sequence.preemptions >= MAX_PREEMPTIONS or sequence.request.beam_search is not None

    def most_blocks(self, sequence: Sequence) -> int:
        return self.pool.blocks_for(sequence.request.max_cached)

    def check_integrity(self) -> list[str]:
        """Every difference between the books and the block tables and adapters of all live sequences, in words."""
        sequences = [sequence for request in self.requests.values() for sequence in request.sequences]
        holders = {*sequences, *self.leaving}
        problems = self.pool.check_integrity(sequence.blocks for sequence in holders)
        problems += self.states.check_integrity(holders)
        for status, members in ((Status.RUNNING, self.running), (Status.PREEMPTED, self.preempted)):
            if {s for s in sequences if s.status is status} != set(members):
                problems.append(f"the list of {status.name.lower()} sequences does not match their status")
        if not all(sequence.in_flight for sequence in self.leaving):
            problems.append("a sequence that has ended holds blocks that no step in flight uses")
        if {s for s in sequences if s.status is Status.WAITING} != set(self.queue):
            problems.append("the queue does not match the status of the waiting sequences")
        return problems

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        self.queue.push(sequence)

    def _interrupt(self, sequence: Sequence) -> None:
        assert not sequence.in_flight
        self._leave(sequence)
        sequence.preemptions += 1
        self.preemptions += 1

    def _leave(self, sequence: Sequence) -> None:
        """Take it out of the list its status names, and give back its blocks."""
        match sequence.status:
            case Status.WAITING:
                self.queue.remove(sequence)
            case Status.PREEMPTED:
                self.preempted.remove(sequence)
            case Status.RUNNING:
                self.running.remove(sequence)
                if sequence.in_flight:
                    self.leaving.append(sequence)
                else:
                    self._empty(sequence)

    def _empty(self, sequence: Sequence) -> None:
        self.pool.free(sequence.blocks)
        self.states.release(sequence)
        sequence.blocks = []
        sequence.num_computed = 0

    def _end(self, request: Request) -> None:
        del self.requests[request.id]
        self.unstarted.discard(request.id)
        if request in self.beam_searches:
            self.beam_searches.remove(request)
        self._release_adapters(request)
        self.queue.close(request.shares)

    def _release_adapters(self, request: Request) -> None:
        """Once it has ended and no step in flight computes with them."""
        if request.holds_adapters and not request.unfinished() and not any(s.in_flight for s in request.sequences):
            request.holds_adapters = False
            for digest in request.digests:
                self.adapters.release(digest)

    def _spare(self) -> int:
        """Free blocks that are not set aside for protected sequences."""
        protected = [s for s in self.running if s.preemptions >= MAX_PREEMPTIONS]
        aside = sum(self.most_blocks(sequence) - len(sequence.blocks) for sequence in protected)
        for request in self.beam_searches:
            held = {block for sequence in request.sequences for block in sequence.blocks}
            aside += request.beam_blocks(self.pool.block_size) - len(held)
        return self.pool.num_free - aside
