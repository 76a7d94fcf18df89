"""SequenceStates: the state slots that sequences hold, and the snapshots that they leave and begin with.

Snapshots are taken at few places, as one takes as much memory as the keys and values of many tokens: at the last block
border of a prompt, from which the next turn of a chat goes on; where cached blocks went on behind the last snapshot, as
that prefix has been asked for twice; and before the last token of a prompt whose other choices are still to fork.
"""

import hashlib
from collections.abc import Collection, Iterable

from ..kv_cache.prefix import BlockKey, block_key, encode
from ..kv_cache.state_pool import StatePool
from .plan import Kept, Scheduled, StepPlan
from .sequence import Sequence


class SequenceStates:
    """Without a pool everything fits, and nothing is held. Each slot that is taken is given back by `release`, or by
    `settle` when the step that writes a snapshot has ended."""

    def __init__(self, pool: StatePool | None, block_size: int) -> None:
        self.pool = pool
        self._block_size = block_size
        self._being_written: list[int] = []
        """Slots of snapshots that steps in flight write."""

    def fits(self, wanted: int, aside: int) -> bool:
        """Whether `wanted` sequences can start; `aside`: free slots that are promised to others."""
        return self.pool is None or self.pool.num_free - aside >= wanted

    def served(self, sequence: Sequence, matched: int) -> tuple[int, int | None]:
        """With how many of its first `matched` blocks, whose keys and values are cached, it can begin, and the
        snapshot at their end."""
        if self.pool is None:
            return matched, None
        return self.pool.latest(sequence.hash_blocks(matched, self._block_size)[:matched])

    def fork(self, sequence: Sequence) -> tuple[bool, int | None]:
        """Whether it can begin before the last token of its prompt, and the snapshot there."""
        if self.pool is None:
            return True, None
        found = [self.pool.find(key) for key in self._fork_keys(sequence)]
        slot = next((slot for slot in found if slot is not None), None)
        return slot is not None, slot

    def start(self, sequence: Sequence, source: int | None, wanted: int, aside: int) -> None:
        """Give it a slot, which becomes a copy of `source` before its next token is computed. Where this snapshot is
        all that is left, it goes on in its place. As `fits` has allowed."""
        if self.pool is None:
            return
        if source is not None and not self.pool.references(source) and self.pool.num_free - aside <= wanted:
            self.pool.adopt(source)
            sequence.state = source
            return
        if source is not None:
            self._copy_from(sequence, source)
        sequence.state = self.pool.allocate()

    def take_over(self, sequence: Sequence, other: Sequence) -> None:
        """Go on from the state of another, which is in no step in flight."""
        if self.pool is None:
            return
        assert other.state is not None and other.state_source is None
        if sequence.state is None:
            sequence.state = self.pool.allocate()
        self._copy_from(sequence, other.state)

    def want(self, sequence: Sequence, matched: int, publishes: bool) -> None:
        """Note where snapshots are to be taken, of a sequence that starts and whose first `matched` blocks were cached.
        `publishes`: for other requests, too."""
        sequence.kept_at = []
        if self.pool is None:
            return
        last, size = sequence.prompt_length - 1, self._block_size
        borders = sorted({last // size, matched}) if publishes else ()
        wanted = [(count * size, sequence.hash_blocks(count, size)[count - 1]) for count in borders if count]
        if any(it.rank < 0 for it in sequence.request.sequences) and sequence.request.beam_search is None:
            wanted.append((last, self._fork_keys(sequence)[0]))
        found = dict(reversed(wanted))
        sequence.kept_at = [(end, found[end]) for end in sorted(found) if end > sequence.num_computed]

    def keep(self, plan: StepPlan, aside: int) -> None:
        """What a plan does with states: copies before its step, and snapshots on the way as far as slots are free."""
        if self.pool is None:
            return
        for item in plan.scheduled:
            sequence = item.sequence
            if sequence.state_source is not None:
                assert sequence.state is not None
                plan.state_copies.append((sequence.state_source, sequence.state))
        for item in plan.scheduled:
            self._keep(item, aside)
        for item in plan.scheduled:
            self._drop_source(item.sequence)

    def publish(self, item: Scheduled) -> None:
        """The step went well: what it kept can be found."""
        for kept in item.kept:
            assert self.pool is not None
            self.pool.publish(kept.slot, kept.key)
            item.sequence.state_keys.append(kept.key)

    def settle(self, items: Iterable[Scheduled]) -> None:
        """The step has ended, well or not."""
        for item in items:
            for kept in item.kept:
                assert self.pool is not None
                self._being_written.remove(kept.slot)
                self.pool.free([kept.slot])

    def release(self, sequence: Sequence) -> None:
        """Give back its slot."""
        if self.pool is not None and sequence.state is not None:
            self._drop_source(sequence)
            self.pool.free([sequence.state])
            sequence.state = None

    def forget(self, sequence: Sequence) -> None:
        """Never find again what it began with or has kept."""
        for key in sequence.state_keys:
            assert self.pool is not None
            self.pool.withdraw(key)

    def check_integrity(self, sequences: Collection[Sequence]) -> list[str]:
        """Differences between the books and what these sequences hold, in words."""
        if self.pool is None:
            return []
        slots = [slot for it in sequences for slot in (it.state, it.state_source) if slot is not None]
        problems = self.pool.check_integrity([slots, self._being_written])
        wrong = [it.state for it in sequences if (it.state is None) is bool(it.blocks)]
        return problems + ([f"sequences hold a state or blocks without the other: {wrong}"] if wrong else [])

    def _keep(self, item: Scheduled, aside: int) -> None:
        assert self.pool is not None
        end, sequence = item.start + item.count, item.sequence
        while sequence.kept_at and sequence.kept_at[0][0] <= end:
            position, key = sequence.kept_at.pop(0)
            found = self.pool.find(key)
            if found is not None:
                # As if it were new: the last to go.
                self.pool.share([found])
                self.pool.free([found])
            elif self.pool.num_free > aside:
                slot = self.pool.allocate()
                self._being_written.append(slot)
                item.kept.append(Kept(position, slot, key))

    def _copy_from(self, sequence: Sequence, source: int) -> None:
        """Hold the source until a step makes the copy."""
        assert self.pool is not None
        self._drop_source(sequence)
        self.pool.share([source])
        sequence.state_source = source

    def _drop_source(self, sequence: Sequence) -> None:
        if sequence.state_source is not None:
            assert self.pool is not None
            self.pool.free([sequence.state_source])
            sequence.state_source = None

    def _fork_keys(self, sequence: Sequence) -> list[BlockKey]:
        """Of the prompt without its last token: a key of the request's own, and that of the block that ends there, if
        one does."""
        last, size = sequence.prompt_length - 1, self._block_size
        full = last // size
        keys = sequence.hash_blocks(full, size)[:full]
        own = _private_key(keys[-1].hash if keys else sequence.request.root_hash, sequence, full * size)
        return [own, *(keys[-1:] if full * size == last else [])]


def _private_key(parent: bytes, sequence: Sequence, first: int) -> BlockKey:
    """Of the prompt without its last token, for the choices of one request: no block's key has a number in it."""
    key = block_key(parent, sequence.token_ids[first : sequence.prompt_length - 1])
    return BlockKey(hashlib.sha256(encode(key.hash, sequence.request.number)).digest(), key.tokens)
