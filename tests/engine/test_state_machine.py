"""Random walks over scheduler, block pool and adapters: no order of events leaks, mixes up or stalls anything."""

import logging
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from .fakes import FakeAdapters, Harness, make_request

WALKS = 850
RULES_A_WALK = 150
DIGESTS = st.sampled_from("abc")
EVENTS = st.sampled_from(["load", "evict", "register", "register", "unregister", "pin"])
SEEDS = st.integers(0, 2**20)


class Walk(RuleBasedStateMachine):
    rules_run = preemptions = prefix_hits = failures = 0
    """Over all walks."""

    @initialize(seed=SEEDS)
    def start(self, seed: int) -> None:
        source = random.Random(seed)
        self.adapters = FakeAdapters(capacity=source.randint(1, 3), instant=False)
        self.adapters.register("a", "b", "c")
        self.count = 0
        self.harness = Harness(
            num_blocks=source.randint(4, 20),
            block_size=source.choice([1, 2, 4]),
            adapters=self.adapters,
            max_num_batched_tokens=source.randint(4, 12),
            max_num_seqs=source.randint(1, 4),
            max_model_len=24,
            max_queue=6,
            enable_prefix_caching=source.random() < 0.8,
        )

    @rule(seed=SEEDS, count=st.integers(1, 3))
    def add(self, seed: int, count: int) -> None:
        source = random.Random(seed)
        for _ in range(count):
            self.count += 1
            if len(self.harness.roster.unstarted) < self.harness.limits.max_queue:
                self._add(source)

    @rule(times=st.integers(1, 3))
    def step(self, times: int) -> None:
        self.harness.drain_some(times)

    @rule(seed=SEEDS)
    def abort(self, seed: int) -> None:
        self.harness.abort(f"r{random.Random(seed).randint(max(1, self.count - 4), max(1, self.count))}")

    @precondition(lambda self: self.harness.roster.running)
    @rule(seed=SEEDS)
    def preempt(self, seed: int) -> None:
        candidates = [s for s in self.harness.roster.running if not self.harness.roster.protected(s)]
        if candidates:
            self.harness.roster.preempt(random.Random(seed).choice(candidates))

    @rule(event=EVENTS, digest=DIGESTS)
    def change_adapter(self, event: str, digest: str) -> None:
        match event:
            case "load" if self.adapters.acquire(digest):
                self.adapters.release(digest)
            case "evict":
                self.adapters.evict(digest)
            case "register":
                self.adapters.failed.pop(digest, None)
                self.adapters.register(digest)
            case "unregister":
                self.adapters.unregister(digest)
            case "pin":
                self.adapters.pinned ^= {digest} & self.adapters.registered

    @precondition(lambda self: self.adapters.loading)
    @rule(fails=st.booleans())
    def end_load(self, fails: bool) -> None:
        for digest in sorted(self.adapters.loading):
            self.adapters.finish_load(digest, "its file is damaged" if fails else None)

    @rule(seed=SEEDS)
    def break_step(self, seed: int) -> None:
        if seed % 4 == 0:
            self.harness.runner.broken = RuntimeError("host")
            self.harness.step()
            self.harness.runner.broken = None

    @invariant()
    def books_are_true(self) -> None:
        if hasattr(self, "harness"):
            Walk.rules_run += 1
            assert self.harness.roster.check_integrity() == []
            self._check_adapters()

    def teardown(self) -> None:
        """From wherever the walk ended, all that is left ends too, and nothing stays held."""
        if not hasattr(self, "harness"):
            return
        for _ in range(2000):
            if not self.harness.core.has_work():
                break
            for digest in sorted(self.adapters.loading):
                self.adapters.finish_load(digest)
            self.adapters.pinned.clear()
            self.harness.step()
        self.harness.assert_released()
        Walk.preemptions += self.harness.roster.preemptions
        Walk.prefix_hits += self.harness.scheduler.prefix_hits
        Walk.failures += sum(stream.failure is not None for stream in self.harness.streams.values())

    def _add(self, source: random.Random) -> None:
        request = make_request(
            f"r{self.count}",
            # Few prompts, so that many share a prefix.
            [source.randrange(1, 3)] * source.randint(1, 14),
            adapter=source.choice([None, None, "a", "b", "c"]),
            tenant=source.choice("xy"),
            priority=source.randrange(3),
            n=source.choice([1, 1, 2, 3]),
            temperature=source.choice([0.0, 1.0]),
            seed=source.randrange(5),
            max_tokens=source.choice([None, 1, 8]),
            ignore_eos=source.random() < 0.8,
        )
        try:
            self.harness.add(request)
        except ValueError as error:
            assert "never fit" in str(error)

    def _check_adapters(self) -> None:
        holders = [r.adapter.digest for r in self.harness.roster.requests.values() if r.holds_adapter and r.adapter]
        assert {digest: count for digest, count in self.adapters.held.items() if count} == {
            digest: holders.count(digest) for digest in holders
        }


def test_a_hundred_thousand_rules_without_a_leak(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "loraplex.engine.core")
    Walk.rules_run = Walk.preemptions = Walk.prefix_hits = Walk.failures = 0
    run_state_machine_as_test(
        Walk,
        settings=settings(
            max_examples=WALKS,
            stateful_step_count=RULES_A_WALK,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Walk.rules_run >= 100_000
    assert min(Walk.preemptions, Walk.prefix_hits, Walk.failures) > 500, "the walks are too tame to show anything"
