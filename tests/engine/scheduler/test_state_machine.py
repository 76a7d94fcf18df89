"""Random walks over scheduler, block pool, state pool and adapter pool: no order of events leaks, mixes up or stalls
anything. Every other walk is of a model with recurrent layers.

All pools are real, the adapters' files too; the model is a fake that knows what each slot of the cache must hold, and
the adapters' loader thread runs a job when the walk says so.
"""

import logging
import random
import tempfile
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from loraplex.engine.kv_cache.state_pool import StatePool
from loraplex.engine.protocol import BeamSearch
from tests.campaign import Campaign
from tests.lora.adapters import make_adapter
from tests.lora.house import House

from ..fake_model import INVOCATIONS
from ..harness import Harness, make_request

WALKS, RULES_A_WALK = 800, 150
PARTS = 5
"""A run takes one of so many parts of the walks."""
RANKS = (1, 8, 16)
"""Of 1, 1 and 2 pages; the pool has 1 to 3 pages."""
INVOCATION = [2, 2]
"""Of the second adapter: it acts on a prompt from the last two of these on."""
EVENTS = ("load", "evict", "register", "register", "unregister", "pin", "unpin")
PATIENT = 2000
"""Steps in which every request must have ended."""


@cache
def stored(number: int) -> tuple[str, str]:
    """Digest and folder of an adapter, written once for all walks."""
    folder = Path(tempfile.mkdtemp(prefix="loraplex-test-"))
    invocation = INVOCATION if number == 1 else None
    digest, _ = make_adapter(folder, RANKS[number], seed=number, alora_invocation_tokens=invocation)
    if invocation:
        INVOCATIONS[digest] = tuple(invocation)
    return digest, str(folder)


class Walk:
    """The walk of this number is always the same. Each leaves some of the rules out, so that others come in a row."""

    rules_run = preemptions = prefix_hits = state_hits = failures = loads = evictions = 0
    """Over all walks."""

    def __init__(self, number: int) -> None:
        self.source = source = random.Random(number)
        pages, slots, host_pages = source.randint(1, 3), source.randint(1, 3), source.choice([0, 1, 2])
        self.house = House(Path("unused"), pages, slots, host_pages)
        self.adapters = self.house.pool
        for index, rank in enumerate(RANKS):
            digest, folder = stored(index)
            self.house.seeds[digest] = index, rank
            self.adapters.register(digest, folder)
        self.count = 0
        self.harness = Harness(
            num_blocks=source.randint(4, 20),
            block_size=source.choice([1, 2, 4]),
            residency=self.adapters,
            states=StatePool(source.randint(2, 8)) if number % 2 else None,
            max_num_batched_tokens=source.randint(4, 12),
            max_num_seqs=source.randint(1, 4),
            max_model_len=24,
            max_queue=6,
            enable_prefix_caching=source.random() < 0.8,
        )

    def run(self, count: int) -> None:
        variety = self.source.uniform(0.4, 1.0)
        rules = [rule for rule in self.RULES if self.source.random() < variety] or [Walk.add, Walk.step]
        self.books_are_true()
        for _ in range(count):
            self.source.choice(rules)(self)
            Walk.rules_run += 1
            self.books_are_true()
        self.end()

    def add(self) -> None:
        for _ in range(self.source.randint(1, 3)):
            self.count += 1
            if len(self.harness.request_table.unstarted) < self.harness.limits.max_queue:
                self._add(self.source)

    def step(self) -> None:
        for _ in range(self.source.randint(1, 3)):
            self._step()

    def abort(self) -> None:
        """A whole request, or one of its choices, as when a stop string is met."""
        name = f"r{self.source.randint(max(1, self.count - 4), max(1, self.count))}"
        self.harness.abort(name, self.source.choice([None, 0, 1]))

    def preempt(self) -> None:
        candidates = [s for s in self.harness.request_table.running if not self.harness.request_table.protected(s)]
        if candidates:
            self.harness.request_table.preempt(self.source.choice(candidates))

    def change_adapter(self) -> None:
        event = self.source.choice(EVENTS)
        digest, folder = stored(self.source.randrange(len(RANKS)))
        # What the pool refuses, it refuses in any state; which that is, its own machine tests.
        with suppress(ValueError):
            match event:
                case "load":
                    self.adapters.load(digest)
                case "evict":
                    self.adapters.evict(digest)
                case "register":
                    self.adapters.register(digest, folder)
                case "unregister":
                    self.adapters.unregister(digest)
                case "pin" | "unpin":
                    self.adapters.pin(digest, event == "pin")

    def end_job(self) -> None:
        if not self.house.executor.jobs:
            return
        if self.source.random() < 1 / 3:
            future, _, _ = self.house.executor.jobs.pop(0)
            future.set_exception(OSError("the disk is gone"))
        else:
            self.house.executor.run()

    def time_passes(self) -> None:
        self.house.clock.now += self.source.choice([0.1, 1.5, 6.0])

    def weights_are_the_adapters_own(self) -> None:
        for digest in self._holders():
            self.house.check_pages(digest)

    def break_step(self) -> None:
        if self.source.random() < 1 / 4:
            self.harness.runner.broken = RuntimeError("host")
            self._step()
            self.harness.runner.broken = None

    RULES = (
        add, step, abort, preempt, change_adapter, end_job, time_passes, weights_are_the_adapters_own, break_step,
    )  # fmt: skip

    def books_are_true(self) -> None:
        assert self.harness.request_table.check_integrity() == []
        self._check_adapters()

    def end(self) -> None:
        """From wherever the walk ended, all that is left ends too, and nothing stays held."""
        for number in range(len(RANKS)):
            with suppress(ValueError):
                self.adapters.pin(stored(number)[0], False)
        for _ in range(PATIENT):
            if not self.harness.core.has_work():
                break
            self._step()
            while self.house.executor.jobs:
                self.house.executor.run()
        self.harness.assert_released()
        Walk.loads += sum(status.loads for status in self.adapters.statuses())
        Walk.evictions += sum(status.evictions for status in self.adapters.statuses())
        for number in range(len(RANKS)):
            self.adapters.unregister(stored(number)[0])
        self.house.work()
        assert self.adapters.bytes_used == 0 and self.adapters.statuses() == []
        Walk.preemptions += self.harness.request_table.preemptions
        Walk.prefix_hits += self.harness.scheduler.prefix_hits
        Walk.state_hits += self.harness.scheduler.prefix_hits if self.harness.states else 0
        Walk.failures += sum(stream.failure is not None for stream in self.harness.streams.values())

    def _step(self) -> None:
        """What the engine's loop does."""
        self.adapters.poll()
        self.harness.step()
        self.house.clock.now += 0.05

    def _add(self, source: random.Random) -> None:
        request = make_request(
            f"r{self.count}",
            # Few prompts, so that many share a prefix.
            [source.randrange(1, 3)] * source.randint(1, 14),
            adapter=tuple(
                stored(number)[0] for number in source.sample(range(len(RANKS)), source.choice([0, 0, 1, 1, 1, 2]))
            ),
            tenant=source.choice("xy"),
            share=(source.choice("kl"), source.choice(["", f"r{self.count}"])),
            priority=source.randrange(3),
            beam_search=BeamSearch() if source.random() < 0.15 else None,
            n=source.choice([1, 1, 2, 3]),
            temperature=source.choice([0.0, 1.0]),
            seed=source.randrange(5),
            max_tokens=source.choice([None, 1, 8]),
            ignore_eos=source.random() < 0.8,
        )
        try:
            self.harness.add(request)
        except ValueError as error:
            assert any(words in str(error) for words in ("never fit", "beams of the prompt", "beams run at once"))

    def _holders(self) -> Counter[str]:
        """digest -> requests that hold it."""
        requests = self.harness.request_table.requests.values()
        return Counter(digest for r in requests if r.holds_adapters for digest in r.digests)

    def _check_adapters(self) -> None:
        assert self.adapters.check_integrity() == []
        holders = self._holders()
        for status in self.adapters.statuses():
            assert status.running == holders[status.digest]
        # Who was unregistered meanwhile shows no status, and keeps its slot.
        assert all(self.adapters.resident(digest) for digest in holders)


def test_thousands_of_rules_without_a_leak(campaign: Campaign, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "loraplex.engine.core")
    for event in ("rules_run", "preemptions", "prefix_hits", "state_hits", "failures", "loads", "evictions"):
        setattr(Walk, event, 0)
    walks = campaign.part(WALKS, PARTS)
    for number in walks:
        try:
            Walk(number).run(RULES_A_WALK)
        except Exception as error:
            error.add_note(f"in walk {number}")
            raise
    assert Walk.rules_run == len(walks) * RULES_A_WALK
    events = Walk.preemptions, Walk.prefix_hits, Walk.state_hits, Walk.failures, Walk.loads, Walk.evictions
    assert min(events) > campaign.enough(300, PARTS), "the walks are too tame to show anything"
