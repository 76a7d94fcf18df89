"""Runners of depth 1 or 2 over a virtual device, and adapters that live in its slots."""

import itertools
import random
from collections import Counter
from functools import partial

from loraplex.engine.device.stream import Event
from loraplex.engine.sampling.state import Sampled
from loraplex.engine.scheduler.plan import Scheduled, StepPlan, StepResult

from .fake_model import INVOCATIONS, VOCAB
from .virtual_model import NO_TOKEN, SLOTS, Brought, Draw, Inputs, VirtualDevice, describe, weights_of

BROKEN = "the device is gone"


class SlottedAdapters:
    """AdapterResidency where each load takes the slot longest idle, and overwrites it at once, whatever is still to run
    on the device."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device
        self.held: Counter[str] = Counter()
        self._slots: dict[str, int] = {}
        """Of the residents, longest idle first."""
        self._epochs = [0] * SLOTS
        self._loads = itertools.count(1)

    def acquire(self, digests: tuple[str, ...]) -> tuple[int, ...] | None:
        wanted = {*digests}
        for digest in wanted - self._slots.keys():
            if not self._load(digest, wanted):
                return None
        self.held.update(digests)
        return tuple([self._epochs[self._slots[digest]] for digest in digests])

    def release(self, digest: str) -> None:
        assert self.held[digest] > 0, f"{digest} released twice"
        self.held[digest] -= 1
        self._slots[digest] = self._slots.pop(digest)

    @property
    def newest_epoch(self) -> int:
        return max(self._epochs)

    def slot_of(self, digest: str, epoch: int) -> int:
        assert self.held[digest], "nobody holds it"
        slot = self._slots[digest]
        assert self._epochs[slot] == epoch, "another load than the request took"
        return slot

    def failure(self, digest: str) -> str | None:
        return None

    def is_additive(self, digest: str) -> bool:
        return True

    def vocab_size(self, digest: str) -> int:
        return VOCAB

    def invocation_tokens(self, digest: str) -> tuple[int, ...]:
        return INVOCATIONS.get(digest, ())

    def _load(self, digest: str, wanted: set[str]) -> bool:
        free = [slot for slot in range(SLOTS) if slot not in self._slots.values()]
        idle = [other for other in self._slots if not self.held[other] and other not in wanted]
        if not free and not idle:
            return False
        slot = self._slots[digest] = free[0] if free else self._slots.pop(idle[0])
        self._device.weights[slot] = weights_of(digest)
        self._epochs[slot] = next(self._loads)
        return True


class VirtualRunner:
    """Tells the device of a step in lists of its own."""

    def __init__(self, device: VirtualDevice, adapters: SlottedAdapters, depth: int, failing: random.Random) -> None:
        self.depth = depth
        self.failure_rate = 0.0
        self._device = device
        self._adapters = adapters
        self._failing = failing
        self._drawn: list[int] = []
        """On the device."""
        self._rows: dict[object, int] = {}
        self._last: VirtualHandle | None = None
        """None behind a step that could not be submitted."""

    def submit(self, plan: StepPlan) -> "VirtualHandle":
        last, self._last = self._last, None
        self._fail_sometimes()
        requests = [item.sequence.request for item in plan.scheduled]
        held = {pair for request in requests for pair in zip(request.digests, request.epochs, strict=True)}
        slots = {self._adapters.slot_of(*pair): weights_of(pair[0]) for pair in held}
        self._device.compute.enqueue(partial(self._device.begin, last is not None and last.in_flight))
        self._device.compute.enqueue(partial(self._device.copy_blocks, plan.copies))
        self._device.compute.enqueue(partial(self._device.copy_states, plan.state_copies))
        self._device.compute.enqueue(partial(self._check_adapters, slots))
        handle = self._begin(plan, [describe(row) for row in plan.sample_rows()])
        try:
            self._fail_sometimes()
        except RuntimeError:
            slots.clear()  # nobody waits for what was enqueued
            raise
        handle.fails = self._failing.random() < self.failure_rate
        self._last = handle
        return handle

    def _begin(self, plan: StepPlan, draws: list[Draw]) -> "VirtualHandle":
        arrived: list[int] = []
        unknown = [(end, row) for end, row in self._unknown(plan.scheduled)]
        inputs, brought = self._inputs(plan.scheduled), _brought(plan.scheduled)
        self._device.compute.enqueue(partial(self._run, inputs, brought, unknown, draws, arrived))
        self._rows = {item.sequence: row for row, item in enumerate(item for item in plan.scheduled if item.sample)}
        return VirtualHandle(self._device.compute.record(), arrived)

    def _run(
        self, step: Inputs, brought: Brought, unknown: list[tuple[int, int]], draws: list[Draw], arrived: list[int]
    ) -> None:
        for token, row in unknown:
            step.token_ids[token] = max(0, self._drawn[row]) if row < len(self._drawn) else 0
        self._device.forward(step)
        self._device.bring_on(step, brought)
        self._drawn = self._device.draw(draws)
        arrived += self._drawn

    def _check_adapters(self, slots: dict[int, int]) -> None:
        """Also of choices that have ended meanwhile, whose tokens nobody sees."""
        if any(self._device.weights[slot] != weights for slot, weights in slots.items()):
            self._device.mistakes.append("an adapter gave way while a step had still to read it")

    def _unknown(self, scheduled: list[Scheduled]) -> list[tuple[int, int]]:
        """Index of each placeholder, and the row that the step before drew it in."""
        found, end = [], 0
        for item in scheduled:
            end += item.count
            if item.start + item.count > len(item.sequence.token_ids):
                found.append((end - 1, self._rows.get(item.sequence, 0)))
        return found

    def _inputs(self, scheduled: list[Scheduled]) -> Inputs:
        step, size = Inputs([], [], [], [0], [], [], [], []), self._device.block_size
        for item in scheduled:
            request, blocks, end = item.sequence.request, list(item.sequence.blocks), item.start + item.count
            adapters = [
                (self._adapters.slot_of(ref.digest, epoch), ref.scale, start)
                for ref, epoch, start in zip(request.adapters, request.epochs, request.starts, strict=True)
            ]
            step.token_ids.extend([*item.sequence.token_ids[item.start : end], 0][: item.count])
            step.positions.extend(range(item.start, end))
            for place in range(item.start, end):
                step.slot_mapping.append(blocks[place // size] * size + place % size)
                step.acting.append([(slot, scale) for slot, scale, start in adapters if start <= place])
            step.query_starts.append(len(step.token_ids))
            step.context_lengths.append(end)
            step.block_tables.append(blocks)
            if item.sample:
                step.sample_rows.append(len(step.token_ids) - 1)
        return step

    def _fail_sometimes(self) -> None:
        if self.failure_rate and self._failing.random() < self.failure_rate:
            raise RuntimeError(BROKEN)


def _brought(scheduled: list[Scheduled]) -> Brought:
    """Nothing of a model without states."""
    slots = [item.sequence.state for item in scheduled]
    kept = [[(it.position, it.slot) for it in item.kept] for item in scheduled]
    return [(slot, pairs) for slot, pairs in zip(slots, kept, strict=True) if slot is not None]


class VirtualHandle:
    in_flight = True

    def __init__(self, event: Event, arrived: list[int]) -> None:
        self.fails = False
        self._event = event
        self._arrived = arrived

    def result(self) -> StepResult:
        self._event.synchronize()
        return self._answer(self._arrived)

    def _answer(self, token_ids: list[int]) -> StepResult:
        self.in_flight = False
        if self.fails:
            raise RuntimeError(BROKEN)
        failed = [row for row, token_id in enumerate(token_ids) if token_id == NO_TOKEN]
        return StepResult(Sampled(token_ids, [None] * len(token_ids), failed))
