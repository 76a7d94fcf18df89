"""FakeRunner: runs the fake model over a cache that holds, for each slot, the hash up to its token.

So any mistake in scheduling, caching, sharing or copying reads a wrong hash: the runner notices it at once.
"""

from loraplex.engine.kv_cache.block_pool import BlockPool
from loraplex.engine.kv_cache.state_pool import StatePool
from loraplex.engine.protocol import TokenLogprob
from loraplex.engine.runner.steps import Ended
from loraplex.engine.sampling.state import Sampled
from loraplex.engine.scheduler.plan import Scheduled, StepPlan, StepResult
from loraplex.engine.scheduler.scheduler import Limits
from loraplex.engine.scheduler.sequence import Sequence

from .fake_model import chain, draw, most_likely


class FakeRunner:
    """Checks every plan against the scheduler's promises while it runs it."""

    depth = 1

    def __init__(self, pool: BlockPool, limits: Limits, states: StatePool | None = None) -> None:
        """`states`: of a model that also has states, each the hash up to the last token it was brought to."""
        self._pool = pool
        self._states = None if states is None else [0] * states.num_slots
        self._limits = limits
        self._slots: list[int | None] = [None] * (pool.num_blocks * pool.block_size)
        self.broken: Exception | None = None
        """Raised instead of running, once."""
        self.poisoned: set[str] = set()
        """Ids of requests whose logits are not finite."""
        self.mistake: Exception | None = None
        """What was wrong with a plan: the core takes it for a failed step, the harness does not."""

    def submit(self, plan: StepPlan) -> Ended:
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error
        try:
            return Ended(self._run(plan))
        except Exception as error:
            self.mistake = error
            raise

    def _run(self, plan: StepPlan) -> StepResult:
        self._check(plan)
        for source, destination in plan.copies:
            self._copy(source, destination)
        states = [self._write(item) for item in plan.scheduled]
        self._bring_on(plan, states)
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

    def _bring_on(self, plan: StepPlan, chains: list[list[int]]) -> None:
        """The states of all sequences, each from where it was left."""
        if self._states is None:
            assert not plan.state_copies and not any(it.kept or it.sequence.state for it in plan.scheduled)
            return
        own = [item.sequence.state or 0 for item in plan.scheduled]
        kept = [it.slot for item in plan.scheduled for it in item.kept]
        sources, destinations = ({pair[side] for pair in plan.state_copies} for side in (0, 1))
        assert all([*own, *kept, *sources]) and len({*own, *kept}) == len(own) + len(kept)
        assert destinations <= {*own} and len(destinations) == len(plan.state_copies)
        assert not sources & (destinations | {*kept})
        for source, destination in plan.state_copies:
            self._states[destination] = self._states[source]
        for item, slot, hashes in zip(plan.scheduled, own, chains, strict=True):
            expected = hashes[item.start - 1] if item.start else None
            assert expected in (None, self._states[slot]), f"{item.sequence.request.id}: another state"
            assert [it.position for it in item.kept] == sorted({it.position for it in item.kept})
            for it in item.kept:
                assert item.start < it.position <= item.start + item.count
                self._states[it.slot] = hashes[it.position - 1]
            self._states[slot] = hashes[-1]

    def _attend(self, item: Scheduled, expected: list[int]) -> None:
        for position, state in enumerate(expected):
            found = self._slots[self._slot(item.sequence, position)]
            assert found == state, f"{item.sequence.request.id}: position {position} holds another prefix"

    def _sample(self, plan: StepPlan) -> Sampled:
        items = [item for item in plan.scheduled if item.sample]
        assert not any(item.sequence.lacks_mask for item in items), "drew without its mask"
        states = [self._slots[self._slot(item.sequence, item.start + item.count - 1)] or 0 for item in items]
        token_ids = [draw(state, row) for state, row in zip(states, plan.sample_rows(), strict=True)]
        failed = [row for row, item in enumerate(items) if item.sequence.request.id in self.poisoned]
        logprobs = [
            None
            if row.logprobs is None
            else TokenLogprob(token_id, -float(row.position), 1, self._top(item, state, row.logprobs))
            for item, state, token_id, row in zip(items, states, token_ids, plan.sample_rows(), strict=True)
        ]
        return Sampled(token_ids, logprobs, failed)

    def _top(self, item: Scheduled, state: int, count: int) -> list[tuple[int, float]]:
        return most_likely(state, count) if item.sequence.request.message.beam_search is not None else []

    def _prompt_logprobs(self, plan: StepPlan) -> dict[int, list[TokenLogprob]]:
        return {
            index: [TokenLogprob(item.sequence.token_ids[p], -float(p), 1) for p in item.prompt_targets]
            for index, item in enumerate(plan.scheduled)
            if item.prompt_targets
        }

    def _slot(self, sequence: Sequence, position: int) -> int:
        block, offset = divmod(position, self._pool.block_size)
        return sequence.blocks[block] * self._pool.block_size + offset
