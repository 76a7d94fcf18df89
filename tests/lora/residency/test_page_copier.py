"""Adapters come and go on a device that runs steps late: none reads what is not there yet or its own no more."""

import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from loraplex.lora.residency.page_copier import Event, PageCopier, Streams, join_runs
from tests.engine.virtual_stream import VirtualEvent, VirtualStream
from tests.lora.signatures import KINDS

from ..adapters import make_adapter, make_tensors, tensor_name
from ..house import House
from ..page_reading import read_back

RANKS = (1, 8, 9, 16, 24, 3)
SEEDS = 16
ROUNDS = 60


class LateStream(VirtualStream):
    """Runs what waits as late as it can, or now and then ahead; who may not wait for it says so."""

    patient = True
    """Whether the thread that runs now may wait."""

    def record(self) -> "LateEvent":
        return LateEvent(self, self._enqueued)


class LateEvent(VirtualEvent):
    def synchronize(self) -> None:
        assert LateStream.patient, "the engine thread waited for the device"
        super().synchronize()


class Traffic:
    """Random loads, uses and evictions; a use is a step that reads its adapter's pages when the device comes to it."""

    def __init__(
        self, seed: int, known: list[tuple[str, Path]], steps: type[LateStream], copies: type[LateStream]
    ) -> None:
        self.source = random.Random(seed)
        self.steps, self.copies = steps(self.source), copies(self.source)
        self.house = House(Path("unused"), slots=3, host_pages=seed % 4, streams=Streams(self.steps, self.copies))
        for number, (digest, folder) in enumerate(known):
            self.house.pool.register(digest, str(folder))
            self.house.seeds[digest] = number, RANKS[number]
        self.seen = 0

    def run(self) -> None:
        for _ in range(ROUNDS):
            self.on_engine_thread(self.one_turn)
            while self.house.executor.jobs and self.source.random() < 0.7:
                self.house.executor.run()
            if self.source.random() < 0.2:
                self.steps.run_to(self.source.randint(0, self.steps._enqueued))
            self.house.clock.now += self.source.choice((0.001, 0.001, 3.0))
            assert self.house.pool.check_integrity() == []
        self.steps.run_to(self.steps._enqueued)

    def one_turn(self) -> None:
        self.house.pool.poll()
        digest = self.source.choice(list(self.house.seeds))
        if (epochs := self.house.pool.acquire((digest,))) is not None:
            self.steps.enqueue(partial(self.read, digest, self.house.pool.slot_of(digest, *epochs)))
            # The request ends before its step does, as after an error: nothing may rely on the scheduler's patience.
            self.house.pool.release(digest)

    def read(self, digest: str, slot: int) -> None:
        """What a kernel would read now."""
        table = self.house.pool.table
        for (layer, kind), wanted in weights(*self.house.seeds[digest]).items():
            rank = int(table.rank[slot, KINDS.index(kind), layer])
            assert rank == len(wanted[0]), "a step read another adapter"
            for found, right in zip(read_back(table, layer, kind, slot), wanted, strict=True):
                assert torch.equal(found, right), "a step read another adapter"
        self.seen += 1

    def on_engine_thread(self, work: Callable[[], None]) -> None:
        LateStream.patient = False
        try:
            work()
        finally:
            LateStream.patient = True


@cache
def weights(seed: int, rank: int) -> dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]:
    """A and B of each module that the adapters of this test have."""
    tensors = make_tensors(rank, seed=seed)
    places = (0, "q_proj"), (1, "down_proj")
    a, b = ([torch.from_numpy(tensors[tensor_name(*place, part)]) for place in places] for part in "AB")
    return dict(zip(places, zip(a, b, strict=True), strict=True))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(folder / str(number), rank, number) for number, rank in enumerate(RANKS)]


def test_steps_read_their_own_adapters_and_the_engine_never_waits(known: list[tuple[str, Path]]) -> None:
    seen = evictions = from_host = 0
    for seed in range(SEEDS):
        traffic = Traffic(seed, known, LateStream, LateStream)
        traffic.run()
        statuses = traffic.house.pool.statuses()
        seen += traffic.seen
        evictions += sum(status.evictions for status in statuses)
        from_host += sum(status.host_loads for status in statuses)
    assert min(seen, evictions, from_host) > 30, "the traffic is too light to show anything"


class Deaf(LateStream):
    """As if a wait for the other stream had been forgotten."""

    def wait(self, event: Event) -> None:
        pass


class Hasty(LateStream):
    """As if nobody waited for a copy."""

    def record(self) -> LateEvent:
        event = super().record()
        event.synchronize = lambda: None  # type: ignore[method-assign]
        return event


class Immediate(LateStream):
    """As if table entries were written past the steps that are under way."""

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        destination.copy_(source)


@pytest.mark.parametrize(("steps", "copies"), [(LateStream, Deaf), (LateStream, Hasty), (Immediate, LateStream)])
def test_the_traffic_finds_each_forgotten_wait(
    steps: type[LateStream], copies: type[LateStream], known: list[tuple[str, Path]]
) -> None:
    with pytest.raises(AssertionError):
        for seed in range(SEEDS):
            Traffic(seed, known, steps, copies).run()


def test_a_copy_for_the_host_has_what_the_engine_thread_wrote_last(tmp_path: Path) -> None:
    source = random.Random(0)
    steps, copies = LateStream(source), LateStream(source)
    house = House(tmp_path, host_pages=3, streams=Streams(steps, copies))
    digest = house.add(1)
    house.pool.load(digest)
    house.work()
    [room] = [entry.room for entry in house.pool._entries.values()]
    assert room is not None
    steps.enqueue(partial(house.pool.table.arena.fill_, 7.0))
    house.pool.evict(digest)
    house.executor.run()
    assert bool((house.pool._host._copies[digest].pages == 7.0).all())


class Counting(LateStream):
    copied = 0

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        self.copied += 1
        super().copy(destination, source)


def test_an_adapter_whose_pages_lie_together_is_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its entries of the table come from one piece of pinned memory."""
    source = random.Random(0)
    steps, copies = Counting(source), Counting(source)
    house = House(tmp_path, pages=8, streams=Streams(steps, copies))
    pinned: list[int] = []
    staging = PageCopier.staging
    monkeypatch.setattr(PageCopier, "staging", lambda self, *size: pinned.append(1) or staging(self, *size))
    digest = house.add(1, rank=40)
    house.pool.load(digest)
    house.work()
    [room] = [entry.room for entry in house.pool._entries.values()]
    assert room is not None and sum(map(len, room.offsets.values())) >= 5
    assert copies.copied == 1 and len(pinned) == 2, "one for pages, one for the table"
    assert steps.copied == 7
    house.pool.evict(digest)
    assert len(pinned) == 3 and steps.copied == 11


@pytest.mark.parametrize(
    ("parts", "runs"),
    [
        ([], []),
        ([(5, 0, 3)], [(5, 0, 3)]),
        ([(5, 0, 3), (8, 3, 3), (11, 6, 1)], [(5, 0, 7)]),
        ([(5, 0, 3), (9, 3, 3), (12, 6, 2)], [(5, 0, 3), (9, 3, 5)]),
        ([(8, 0, 3), (5, 3, 3)], [(8, 0, 3), (5, 3, 3)]),
        ([(0, 0, 3), (3, 4, 3)], [(0, 0, 3), (3, 4, 3)]),
    ],
)
def test_runs_follow_each_other_on_both_sides(
    parts: list[tuple[int, int, int]], runs: list[tuple[int, int, int]]
) -> None:
    assert [*join_runs(parts)] == runs
