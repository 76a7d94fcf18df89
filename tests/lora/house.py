"""House: a pool whose jobs run when the test says so, on a clock that the test moves."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loraplex.lora.residency.page_copier import Streams
from loraplex.lora.residency.pool import AdapterPool
from loraplex.lora.residency.residency import Residency

from .adapters import BASE, make_adapter, make_tensors, tensor_name
from .page_reading import read_back

PAGE = 2 * 8 * (16 + 24 + 40 + 16) * 4
"""Bytes of 8 ranks of q_proj and down_proj over both layers in float32."""


def held_slot(pool: AdapterPool, digest: str) -> int:
    """Slot of an adapter that is held, by whoever took it last."""
    room = pool._entries[digest].room
    assert room is not None
    return pool.slot_of(digest, room.epoch)


class ManualExecutor(Executor):
    """Runs a job when told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert not kwargs
        future: Future[Any] = Future()
        self.jobs.append((future, fn, args))
        return future

    def run(self, index: int = 0) -> None:
        future, function, arguments = self.jobs.pop(index)
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class House:
    """A pool for `pages` pages of 8 ranks, a host cache for `host_pages`, and the adapters registered in it."""

    def __init__(
        self, folder: Path, pages: int = 3, slots: int = 8, host_pages: int = 0, streams: Streams | None = None
    ) -> None:
        self.folder = folder
        self.executor, self.clock = ManualExecutor(), Clock()
        self.pool = AdapterPool(
            BASE, memory=pages * PAGE, slots=slots, dtype=torch.float32, device=torch.device("cpu"),
            host_memory=host_pages * PAGE, executor=self.executor, clock=self.clock, streams=streams,
        )  # fmt: skip
        self.seeds: dict[str, tuple[int, int]] = {}

    def add(self, seed: int, rank: int = 8, pinned: bool = False) -> str:
        digest, folder = make_adapter(self.folder / str(seed), rank, seed)
        self.pool.register(digest, str(folder), pinned)
        self.seeds[digest] = seed, rank
        return digest

    def work(self, steps: int = 4) -> None:
        for _ in range(steps):
            self.pool.poll()
            while self.executor.jobs:
                self.executor.run()
            self.clock.now += 0.001
            assert self.pool.check_integrity() == []

    def take(self, digest: str) -> None:
        if not self.pool.acquire((digest,)):
            self.work()
            assert self.pool.acquire((digest,)), self.pool.failure(digest)
        self.check_pages(digest)

    def check_pages(self, digest: str, epoch: int | None = None) -> None:
        """The slot holds this adapter's weights and no others."""
        seed, rank = self.seeds[digest]
        slot = held_slot(self.pool, digest) if epoch is None else self.pool.slot_of(digest, epoch)
        tensors = make_tensors(rank, seed=seed)
        for layer, kind in ((0, "q_proj"), (1, "down_proj")):
            a, b = read_back(self.pool.table, layer, kind, slot)
            assert torch.equal(a, torch.from_numpy(tensors[tensor_name(layer, kind, "A")]))
            assert torch.equal(b, torch.from_numpy(tensors[tensor_name(layer, kind, "B")]))

    def status(self, digest: str) -> Residency:
        return next(status for status in self.pool.statuses() if status.digest == digest)
