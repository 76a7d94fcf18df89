import pytest

from loraplex.engine.protocol import FinishReason

from ..fake_adapters import FakeAdapters
from ..harness import Harness, make_request, tokens

# Blocks


def test_blocks_that_a_step_in_flight_uses_are_given_back_when_it_lands(harness: Harness) -> None:
    harness.add(make_request("r", tokens(10)))
    plan = harness.scheduler.schedule()
    handle = harness.runner.submit(plan)
    blocks = [*plan.scheduled[0].sequence.blocks]
    harness.abort("r")
    held = [harness.pool.references(block) for block in blocks]
    assert held == [1] * len(blocks), "released too early: the step still writes to them"
    harness.scheduler.commit(plan, handle.result())
    harness.assert_released()


def test_a_choice_that_ends_leaves_the_blocks_it_shared_to_the_others(harness: Harness) -> None:
    harness.add(make_request("r", tokens(9), n=3, temperature=1.0, ignore_eos=True))
    harness.drain_some(3)
    first, *others = harness.request_table.requests["r"].sequences
    shared = [block for block in first.blocks if block in others[0].blocks]
    for index, left in ((0, 2), (1, 1)):
        harness.abort("r", index)
        assert shared and [harness.pool.references(block) for block in shared] == [left] * len(shared)
        assert harness.request_table.check_integrity() == [], "released too early: the others still read them"
    harness.drain()
    harness.assert_released()


# Steps


def test_a_prompt_is_computed_in_chunks_of_the_budget(harness: Harness) -> None:
    harness.add(make_request("r", tokens(40)))
    counts = []
    for _ in range(3):
        plan = harness.scheduler.schedule()
        counts += [(item.start, item.count, item.sample) for item in plan.scheduled]
        harness.scheduler.commit(plan, harness.runner.submit(plan).result())
    assert counts == [(0, 16, False), (16, 16, False), (32, 8, True)]


def test_decodes_come_first_and_prompts_fill_the_rest(harness: Harness) -> None:
    for name in ("a", "b"):
        harness.add(make_request(name, tokens(4), ignore_eos=True, max_tokens=30))
    harness.step()
    harness.add(make_request("c", tokens(40, 1)))
    plan = harness.scheduler.schedule()
    assert [(item.sequence.request.id, item.count) for item in plan.scheduled] == [("a", 1), ("b", 1), ("c", 14)]


def test_the_oldest_prompt_gets_half_and_shorter_ones_pass_longer_ones() -> None:
    harness = Harness(num_blocks=200, max_model_len=200, max_num_batched_tokens=16)
    for name, length in (("oldest", 100), ("long", 80)):
        harness.add(make_request(name, tokens(length, len(name))))
        harness.step()
    harness.add(make_request("short", tokens(6)))
    harness.add(make_request("longer", tokens(90, 3)))
    plan = harness.scheduler.schedule()
    assert {item.sequence.request.id: item.count for item in plan.scheduled} == {"oldest": 8, "short": 6, "long": 2}


def test_short_requests_are_served_at_once_beside_a_flood_of_long_prompts() -> None:
    harness = Harness(num_blocks=4000, block_size=16, max_model_len=4000, max_num_batched_tokens=64, max_num_seqs=32)
    for number in range(20):
        harness.add(make_request(f"flood{number}", tokens(1500, number), tenant="flood"))
    waits = []
    for number in range(30):
        harness.drain_some(5)
        stream = harness.add(make_request(f"short{number}", tokens(20, 1000 + number), tenant="short", max_tokens=4))
        arrival = harness.now
        while not stream.messages:
            harness.step()
        waits.append(harness.now - arrival)
    assert max(waits) <= 2


def test_adjacent_requests_of_one_shape_are_served_in_order() -> None:
    harness = Harness(num_blocks=400, max_model_len=100, max_num_batched_tokens=32)
    streams = [harness.add(make_request(f"r{number}", tokens(64, number), max_tokens=1)) for number in range(6)]
    first: dict[int, float] = {}
    while harness.core.has_work():
        harness.step()
        for number, stream in enumerate(streams):
            if stream.messages:
                first.setdefault(number, harness.now)
    assert list(first) == sorted(first) and first[0] <= 4


# Preemption


def test_the_most_junior_gives_way_and_comes_back_with_the_same_tokens() -> None:
    harness = Harness(num_blocks=9, block_size=4)
    requests = [make_request(f"r{number}", tokens(6, number), max_tokens=20, ignore_eos=True) for number in range(3)]
    streams = [harness.add(request) for request in requests]
    ends: dict[int, float] = {}
    while harness.core.has_work():
        harness.step()
        ends.update({number: harness.now for number, s in enumerate(streams) if s.ended and number not in ends})
    assert harness.request_table.preemptions > 0
    assert list(ends) == [0, 1, 2]
    harness.assert_released()


def test_priorities_decide_who_gives_way_inside_a_tenant_only() -> None:
    harness = Harness(num_blocks=30, block_size=4)
    for name, tenant, priority in (("unimportant", "a", 5), ("important", "a", 0)):
        harness.add(make_request(name, tokens(8, priority), tenant=tenant, priority=priority, ignore_eos=True))
        harness.step()
    assert harness.request_table.victim().request.id == "unimportant"
    for number in range(3):
        harness.add(make_request(f"cheater{number}", [1], tenant="b", priority=-99, ignore_eos=True))
    harness.step()
    assert harness.request_table.victim().request.id == "cheater2"


def test_one_that_gave_way_often_is_protected() -> None:
    harness = Harness(num_blocks=13, block_size=4)
    harness.add(make_request("senior", tokens(6), max_tokens=40, ignore_eos=True))
    harness.add(make_request("r", tokens(6, 1), max_tokens=40, ignore_eos=True))
    harness.step()
    [sequence] = harness.request_table.requests["r"].sequences
    for _ in range(3):
        harness.request_table.preempt(sequence)
        harness.drain_some(1)
    assert sequence.preemptions == 3 and sequence in harness.request_table.preempted, (
        "not enough blocks to promise it all"
    )
    harness.drain()
    assert sequence.preemptions == 3
    harness.assert_released()


# Adapters


def test_who_waits_for_an_adapter_waits_alone() -> None:
    harness = Harness(adapters=FakeAdapters(instant=False))
    harness.adapters.register("slow")
    slow = harness.add(make_request("slow", tokens(4), "slow"))
    base = harness.add(make_request("base", tokens(4)))
    while not base.ended:
        harness.step()
    assert not slow.messages
    harness.step()
    assert not harness.core.progressed
    harness.adapters.finish_load("slow")
    harness.drain()
    harness.assert_released()


@pytest.mark.parametrize(("registered", "words"), [(True, "rank is 0"), (False, "no adapter a is registered")])
def test_an_adapter_that_cannot_be_had_ends_its_requests_only(registered: bool, words: str) -> None:
    harness = Harness(adapters=FakeAdapters(instant=False))
    if registered:
        harness.adapters.register("a")
        harness.adapters.failed["a"] = words
    lost = [harness.add(make_request(f"lost{number}", tokens(4), "a", n=2)) for number in range(2)]
    base = harness.add(make_request("base", tokens(4)))
    harness.drain()
    for stream in lost:
        assert stream.failure is not None and not stream.messages
        assert (stream.failure.kind, stream.failure.message) == ("unavailable", words)
    assert base.failure is None
    harness.assert_released()


def test_a_sum_waits_for_all_its_adapters_and_holds_none_meanwhile() -> None:
    harness = Harness(adapters=FakeAdapters(instant=False))
    harness.adapters.register("a", "b")
    stream = harness.add(make_request("sum", tokens(4), ("a", "b"), n=2, ignore_eos=True))
    harness.step()
    harness.adapters.finish_load("a")
    harness.step()
    assert not stream.messages and harness.adapters.held == {"a": 0}
    harness.adapters.finish_load("b")
    harness.step()
    assert harness.adapters.held == {"a": 1, "b": 1}
    harness.drain()
    assert stream.reasons == [FinishReason.LENGTH] * 2
    harness.assert_released()


@pytest.mark.parametrize(("adapter", "scale"), [(("a", "b"), 1.0), ("b", 0.5)])
def test_what_is_more_than_an_addition_is_neither_summed_nor_scaled(
    adapter: str | tuple[str, ...], scale: float
) -> None:
    harness = Harness()
    harness.adapters.register("a", "b")
    harness.adapters.changing.add("b")
    refused = harness.add(make_request("refused", tokens(4), adapter, scale=scale))
    alone = harness.add(make_request("alone", tokens(4), "b"))
    scaled = harness.add(make_request("scaled", tokens(4), "a", scale=0.5))
    harness.drain()
    assert refused.failure is not None and refused.failure.kind == "invalid"
    assert "adapter b changes what the base itself computes" in refused.failure.message
    assert alone.failure is None and scaled.failure is None
    harness.assert_released()


def test_a_running_request_keeps_an_unregistered_adapter_through_preemption() -> None:
    harness = Harness()
    harness.adapters.register("a")
    stream = harness.add(make_request("r", tokens(6), "a", ignore_eos=True, max_tokens=20))
    harness.drain_some(3)
    harness.adapters.unregister("a")
    harness.request_table.preempt(harness.request_table.running[0])
    harness.drain()
    assert stream.reasons == [FinishReason.LENGTH] and harness.adapters.held == {}
    harness.assert_released()
