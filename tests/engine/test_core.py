import sys
from collections import Counter

import pytest

from loraplex.engine.core import EngineCore
from loraplex.engine.kv_cache.block_pool import BlockPool
from loraplex.engine.protocol import FinishReason
from loraplex.engine.runner.steps import Ended
from loraplex.engine.sampling.state import Sampled
from loraplex.engine.scheduler.plan import StepPlan, StepResult
from loraplex.engine.scheduler.scheduler import Scheduler
from loraplex.engine.status import AdapterStatus

from .fake_adapters import FakeAdapters
from .harness import Harness, make_limits, make_request, tokens


def test_a_broken_step_ends_its_own_requests_and_no_others() -> None:
    harness = Harness(max_num_seqs=2)
    running = [harness.add(make_request(f"r{number}", tokens(9, number), ignore_eos=True)) for number in range(2)]
    waiting = harness.add(make_request("waiting", tokens(9), n=2, temperature=1.0))
    harness.drain_some(3)
    harness.runner.broken = RuntimeError("no more memory")
    harness.step()
    for stream in running:
        assert stream.failure is not None and stream.failure.kind == "internal"
        assert stream.failure.message == "the engine failed in a step: RuntimeError: no more memory"
    harness.drain()
    assert waiting.failure is None and None not in waiting.reasons
    harness.assert_released()


@pytest.mark.parametrize("moment", range(12))
def test_it_may_break_at_any_step(moment: int) -> None:
    harness = Harness(num_blocks=12, max_num_seqs=4)
    harness.adapters.register("a")
    for number in range(6):
        adapter = "a" if number % 2 else None
        harness.add(make_request(f"r{number}", tokens(9, number), adapter, n=2, temperature=1.0, ignore_eos=True))
    harness.drain_some(moment)
    harness.runner.broken = ValueError("host")
    harness.drain()
    failed = [stream for stream in harness.streams.values() if stream.failure is not None]
    assert 1 <= len(failed) <= 4
    harness.assert_released()


def test_what_a_broken_step_computed_is_never_found(harness: Harness) -> None:
    harness.add(make_request("broken", tokens(24), ignore_eos=True))
    harness.step()
    harness.runner.broken = RuntimeError("half written")
    harness.step()
    again = harness.add(make_request("again", tokens(24)))
    harness.drain()
    assert again.messages[0].cached_tokens == 0


def test_a_request_without_usable_logits_fails_alone_and_leaves_no_prefix(harness: Harness) -> None:
    bad = harness.add(make_request("bad", tokens(20), n=3, temperature=1.0))
    good = harness.add(make_request("good", tokens(20, 1)))
    harness.step()
    harness.runner.poisoned.add("bad")
    harness.drain()
    assert bad.failure is not None and bad.failure.kind == "internal" and "NaN" in bad.failure.message
    assert good.failure is None
    again = harness.add(make_request("again", tokens(20)))
    harness.drain()
    assert again.messages[0].cached_tokens == 0
    harness.assert_released()


def test_failing_mid_output_ends_every_choice_once(harness: Harness) -> None:
    harness.adapters.register("a")
    bad = harness.add(make_request("bad", tokens(9), "a", n=4, temperature=1.0, ignore_eos=True, max_tokens=30))
    harness.drain_some(6)
    harness.runner.poisoned.add("bad")
    harness.drain()
    assert bad.failure is not None and bad.reasons == [None] * 4
    harness.assert_released()


def test_an_integrity_problem_raises_in_tests_and_is_counted_in_production() -> None:
    harness = Harness()
    harness.pool.allocate()
    harness.add(make_request("r", [1], max_tokens=1))
    with pytest.raises(AssertionError, match="counted 1 times, held 0"):
        harness.drain()
    lenient = EngineCore(harness.scheduler, harness.runner)
    lenient.add(make_request("again", [1], max_tokens=1))
    while lenient.has_work():
        lenient.step()
    assert lenient.status().integrity_errors == 1


def test_status_counts_what_happened() -> None:
    adapters = FakeAdapters()
    adapters.register("a", "b")
    harness = Harness(num_blocks=20, block_size=4, adapters=adapters, max_num_seqs=2)
    described = [AdapterStatus(digest=d, state="resident", bytes=8, host_bytes=5) for d in "ba"]
    harness.core = EngineCore(harness.scheduler, harness.runner, lambda: described, strict=True)
    harness.add(make_request("cached", tokens(8, 9), max_tokens=1))
    harness.drain()
    harness.add(make_request("base", tokens(5), ignore_eos=True))
    harness.add(make_request("a", tokens(9, 1), "a", ignore_eos=True))
    harness.add(make_request("waits", tokens(9), "a"))
    harness.step()
    status = harness.core.status()
    assert (status.running, status.waiting, status.steps, status.sequence) == (2, 1, 2, 1)
    assert (status.free_blocks, status.cached_blocks) == (14, 2)
    assert sorted(status.block_map) == [0] * 12 + [1] * 2 + [2] * 2 + [4] * 3
    assert [(adapter.running, adapter.waiting) for adapter in status.adapters] == [(0, 0), (1, 1)]
    assert (status.prompt_tokens, status.generation_tokens, status.adapter_bytes_used) == (22, 3, 16)
    assert status.adapter_host_bytes_used == 10
    assert 0 < status.host_seconds <= status.step_seconds and status.device_seconds is None
    harness.drain()
    assert harness.core.status().sequence == 2


def test_the_first_message_of_a_choice_tells_how_long_it_waited(harness: Harness) -> None:
    harness.add(make_request("long", tokens(16), ignore_eos=True))
    late = harness.add(make_request("late", tokens(16, 1), n=2, temperature=1.0, ignore_eos=True))
    harness.drain()
    assert [message.queue_seconds for message in late.messages if message.queue_seconds is not None] == [1.0, 1.0]


def test_the_first_message_tells_how_much_of_it_was_for_adapters() -> None:
    harness = Harness(adapters=FakeAdapters(instant=False))
    harness.adapters.register("a")
    streams = [harness.add(make_request(name, tokens(16, 1), "a", ignore_eos=True)) for name in ("first", "second")]
    base = harness.add(make_request("base", tokens(16), ignore_eos=True))
    for _ in range(3):
        harness.step()
    harness.adapters.finish_load("a")
    harness.drain()
    told = [[m.load_seconds for m in stream.messages if m.load_seconds is not None] for stream in (*streams, base)]
    assert told == [[3.0], [4.0], [0.0]], "the second takes it in the step after the first"


def test_logprobs_come_with_their_tokens(harness: Harness) -> None:
    stream = harness.add(make_request("r", tokens(4), logprobs=0, ignore_eos=True))
    harness.drain()
    assert [entry.token_id for message in stream.messages for entry in message.logprobs or []] == stream.outputs[0]
    assert stream.reasons == [FinishReason.LENGTH]


class InstantRunner:
    """Draws token 1 for every row, at no cost of its own."""

    depth = 1

    def submit(self, plan: StepPlan) -> Ended:
        count = sum(item.sample for item in plan.scheduled)
        return Ended(StepResult(Sampled([1] * count, [None] * count, [])))


def test_host_work_of_a_decode_step_is_small() -> None:
    """In calls of functions, which are the same on every machine: 16 decodes make about 700, some 60 us in all."""
    limits = make_limits(max_model_len=2000, max_num_seqs=16, max_num_batched_tokens=512)
    core = EngineCore(Scheduler(limits, BlockPool(4000, 16), FakeAdapters()), InstantRunner())
    for number in range(16):
        core.add(make_request(f"r{number}", tokens(20, number), max_tokens=1500, ignore_eos=True))
    core.step()
    calls = Counter[str]()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        for _ in range(100):
            core.step()
    finally:
        sys.setprofile(None)
    assert (calls["call"] + calls["c_call"]) / 100 < 800
