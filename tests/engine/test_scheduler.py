import random

import pytest

from loraplex.engine.protocol import FinishReason
from loraplex.engine.scheduler import Overloaded

from .fakes import EOS, VOCAB, FakeAdapters, Harness, make_limits, make_request


def tokens(count: int, seed: int = 0) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(1, VOCAB) for _ in range(count)]


@pytest.fixture
def harness() -> Harness:
    return Harness()


# Refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [1] * 64}, "the prompt has 64 tokens, but prompt and output together may have 64"),
        ({"prompt": [1, VOCAB]}, f"token id {VOCAB}, outside the vocabulary of {VOCAB}"),
        ({"prompt": [1, -1]}, "token id -1"),
        ({"prompt": [1], "temperature": -1.0}, "temperature must be between 0.0 and 100.0"),
        ({"prompt": [1], "adapter": "a", "scale": float("nan")}, "scale must be a finite number, got nan"),
        ({"prompt": [1], "min_tokens": 1, "allowed_token_ids": [EOS]}, "forbids every token of allowed_token_ids"),
    ],
)
def test_what_is_wrong_is_refused_in_words(harness: Harness, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        harness.add(make_request("r", **changes))  # type: ignore[arg-type]
    harness.assert_released()


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    harness = Harness(num_blocks=5, block_size=4)
    with pytest.raises(ValueError, match="10 tokens and up to 8 of output never fit in the KV cache of 16 tokens"):
        harness.add(make_request("large", tokens(10), max_tokens=8))
    with pytest.raises(ValueError, match="17 tokens never fit in the KV cache of 16 tokens"):
        harness.add(make_request("endless", tokens(17), max_tokens=None))
    stream = harness.add(make_request("exact", tokens(10), max_tokens=7, ignore_eos=True))
    harness.drain()
    assert len(stream.outputs[0]) == 7
    harness.assert_released()


def test_a_live_id_is_refused_and_free_again_after_the_end(harness: Harness) -> None:
    harness.add(make_request("r", [1]))
    with pytest.raises(ValueError, match="id 'r' is running already"):
        harness.core.add(make_request("r", [2]))
    harness.drain()
    harness.add(make_request("r", [2]))
    harness.drain()


def test_a_full_queue_refuses_one_more_and_counts_only_who_waits() -> None:
    harness = Harness(max_queue=2, max_num_seqs=1)
    for name in ("running", "first"):
        harness.add(make_request(name, [1], ignore_eos=True))
        harness.step()
    harness.add(make_request("second", [1], n=4))
    with pytest.raises(Overloaded, match="2 requests wait already"):
        harness.add(make_request("third", [1]))
    harness.abort("first")
    harness.add(make_request("third", [1]))
    harness.drain()
    harness.assert_released()


def test_a_budget_below_the_sequences_is_refused() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens 4 is below max_num_seqs 8"):
        make_limits(max_num_batched_tokens=4, max_num_seqs=8)


# Steps


def test_a_prompt_is_computed_in_chunks_of_the_budget(harness: Harness) -> None:
    harness.add(make_request("r", tokens(40)))
    counts = []
    for _ in range(3):
        plan = harness.scheduler.schedule()
        counts += [(item.start, item.count, item.sample) for item in plan.scheduled]
        harness.scheduler.commit(plan, harness.runner.run(plan))
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


# Ends


def test_max_tokens_and_the_models_length_end_with_length(harness: Harness) -> None:
    short = harness.add(make_request("short", tokens(3), max_tokens=5, ignore_eos=True))
    full = harness.add(make_request("full", tokens(60), max_tokens=None, ignore_eos=True))
    harness.drain()
    assert (len(short.outputs[0]), short.reasons[0]) == (5, FinishReason.LENGTH)
    assert (len(full.outputs[0]), full.reasons[0]) == (4, FinishReason.LENGTH)


def find_prompt(harness: Harness, wanted: int, position: int) -> list[int]:
    """A prompt whose solo run says `wanted` at `position` first."""
    for seed in range(10_000):
        prompt = tokens(5, seed)
        output, _ = harness.solo(make_request("x", prompt, ignore_eos=True, max_tokens=20), 0)
        if wanted in output and output.index(wanted) == position:
            return prompt
    raise AssertionError


def test_an_end_of_sequence_token_stops_without_a_stop_reason(harness: Harness) -> None:
    stream = harness.add(make_request("r", find_prompt(harness, EOS, 3), max_tokens=20))
    harness.drain()
    assert (len(stream.outputs[0]), stream.reasons[0]) == (4, FinishReason.STOP)
    assert stream.messages[-1].stop_reason is None and stream.outputs[0][-1] == EOS


def test_a_stop_token_stops_and_is_named(harness: Harness) -> None:
    prompt = find_prompt(harness, 7, 2)
    stream = harness.add(make_request("r", prompt, max_tokens=20, stop_token_ids=[7], ignore_eos=True))
    harness.drain()
    assert (len(stream.outputs[0]), stream.reasons[0]) == (3, FinishReason.STOP)
    assert stream.messages[-1].stop_reason == 7


def test_min_tokens_blocks_every_end_until_it_is_reached(harness: Harness) -> None:
    prompt = find_prompt(harness, 7, 0)
    stream = harness.add(make_request("r", prompt, min_tokens=4, max_tokens=9, stop_token_ids=[7]))
    rows = []
    while harness.core.has_work():
        plan = harness.scheduler.schedule()
        rows += [set(row.blocked_token_ids) for row in plan.sample_rows()]
        harness.receive(harness.scheduler.commit(plan, harness.runner.run(plan)))
    assert rows[:4] == [{EOS, 7}] * 4 and not any(rows[4:])
    assert len(stream.outputs[0]) >= 4


def test_abort_ends_each_choice_once_and_releases_everything(harness: Harness) -> None:
    harness.adapters.register("a")
    stream = harness.add(make_request("r", tokens(9), "a", n=3, temperature=1.0, ignore_eos=True, max_tokens=20))
    harness.drain_some(4)
    harness.abort("r")
    harness.abort("r")
    assert stream.reasons == [FinishReason.ABORT] * 3
    harness.assert_released()


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("moment", [0, 1, 2, 4, 8])
def test_one_choice_is_ended_and_its_blocks_are_free_at_once(moment: int, index: int) -> None:
    harness = Harness(max_num_batched_tokens=8)
    prompt = tokens(13)
    stream = harness.add(make_request("r", prompt, n=3, temperature=1.0, ignore_eos=True, max_tokens=20))
    harness.drain_some(moment)
    used = harness.pool.num_usable - harness.pool.num_free
    harness.abort("r", index)
    harness.abort("r", index)
    assert [reason is FinishReason.ABORT for reason in stream.reasons] == [choice == index for choice in range(3)]
    assert moment < 8 or harness.pool.num_usable - harness.pool.num_free < used
    harness.drain()
    assert sorted(map(len, stream.outputs))[1:] == [20, 20]
    harness.abort("r", index)
    harness.assert_released()


# Prefix cache


def test_a_known_prefix_is_not_computed_again_but_its_last_token_is() -> None:
    harness = Harness(block_size=4)
    prompt = tokens(16)
    harness.add(make_request("first", prompt))
    harness.drain()
    again = harness.add(make_request("again", prompt))
    plan = harness.scheduler.schedule()
    assert [(item.start, item.count) for item in plan.scheduled] == [(12, 4)]
    harness.receive(harness.scheduler.commit(plan, harness.runner.run(plan)))
    harness.drain()
    assert again.messages[0].cached_tokens == 12
    assert (harness.scheduler.prefix_queries, harness.scheduler.prefix_hits) == (32, 12)


@pytest.mark.parametrize(
    "other", [{"tenant": "other"}, {"adapter": "a"}, {"adapter": "b", "scale": 2.0}, {"adapter": "c"}]
)
def test_nothing_is_shared_across_tenants_adapters_or_scales(other: dict[str, object]) -> None:
    harness = Harness(adapters=FakeAdapters(capacity=4))
    harness.adapters.register("a", "b", "c")
    for number, owner in enumerate([{}, {"adapter": "b"}]):
        harness.add(make_request(f"first{number}", tokens(16), **owner))  # type: ignore[arg-type]
        harness.drain()
    stream = harness.add(make_request("second", tokens(16), **other))  # type: ignore[arg-type]
    harness.drain()
    assert stream.messages[0].cached_tokens == 0


def test_output_is_cached_too() -> None:
    harness = Harness()
    first = harness.add(make_request("first", tokens(6), max_tokens=12, ignore_eos=True))
    harness.drain()
    second = harness.add(make_request("second", tokens(6) + first.outputs[0] + [3]))
    harness.drain()
    assert second.messages[0].cached_tokens == 16


def test_without_prefix_caching_nothing_is_found() -> None:
    harness = Harness(enable_prefix_caching=False)
    for name in ("first", "second"):
        stream = harness.add(make_request(name, tokens(16)))
        harness.drain()
    assert stream.messages[0].cached_tokens == 0 and harness.pool.num_cached == 0


def test_prompt_logprobs_cover_the_whole_prompt_and_read_no_cache() -> None:
    harness = Harness(max_num_batched_tokens=8)
    harness.add(make_request("first", tokens(20)))
    harness.drain()
    stream = harness.add(make_request("second", tokens(20), prompt_logprobs=0, n=2))
    harness.drain()
    with_prompt = [message for message in stream.messages if message.prompt_logprobs is not None]
    assert len(with_prompt) == 1 and with_prompt[0] is stream.messages[0] and with_prompt[0].cached_tokens == 0
    entries = with_prompt[0].prompt_logprobs
    assert entries is not None and entries[0] is None
    assert [entry.token_id for entry in entries[1:] if entry] == tokens(20)[1:]
    assert [entry.logprob for entry in entries[1:] if entry] == [-float(position) for position in range(1, 20)]


def test_scoring_a_prompt_needs_no_output(harness: Harness) -> None:
    stream = harness.add(make_request("r", tokens(20), prompt_logprobs=1, max_tokens=0, n=2))
    harness.drain()
    assert stream.outputs == [[], []] and stream.reasons == [FinishReason.LENGTH] * 2
    assert len(stream.messages[0].prompt_logprobs or []) == 20
    harness.assert_released()


# Several choices


@pytest.mark.parametrize("length", [1, 7, 8, 9])
@pytest.mark.parametrize("caching", [True, False])
def test_choices_share_the_prompt_and_copy_the_block_they_write(length: int, caching: bool) -> None:
    harness = Harness(block_size=8, enable_prefix_caching=caching)
    stream = harness.add(make_request("r", tokens(length), n=4, temperature=1.0, ignore_eos=True, max_tokens=12))
    harness.step()
    plan = harness.scheduler.schedule()
    forks = plan.scheduled[1:]
    assert [(item.start, item.count, item.sample) for item in forks] == [(length - 1, 1, True)] * 3
    assert len(plan.copies) == (0 if (length - 1) % 8 == 0 else 3)
    shared = [item.sequence.blocks[: (length - 1) // 8] for item in plan.scheduled]
    assert all(table == shared[0] for table in shared)
    harness.receive(harness.scheduler.commit(plan, harness.runner.run(plan)))
    harness.drain()
    assert len({tuple(output) for output in stream.outputs}) == 4
    harness.assert_released()


def test_choices_wait_in_line_when_seats_are_few() -> None:
    harness = Harness(max_num_seqs=2)
    stream = harness.add(make_request("r", tokens(9), n=5, temperature=1.0, ignore_eos=True))
    harness.drain()
    assert stream.reasons == [FinishReason.LENGTH] * 5
    harness.assert_released()


def test_a_seed_repeats_and_none_differs(harness: Harness) -> None:
    seeds = []
    for name, seed in (("a", 5), ("b", 5), ("c", None), ("d", None)):
        harness.core.add(make_request(name, tokens(3), seed=seed, n=2))
        seeds.append([sequence.row.seed for sequence in harness.roster.requests[name].sequences])
    assert seeds[0] == seeds[1] and len({seed for pair in seeds[1:] for seed in pair}) == 6


# Preemption


def test_the_most_junior_gives_way_and_comes_back_with_the_same_tokens() -> None:
    harness = Harness(num_blocks=9, block_size=4)
    requests = [make_request(f"r{number}", tokens(6, number), max_tokens=20, ignore_eos=True) for number in range(3)]
    streams = [harness.add(request) for request in requests]
    ends: dict[int, float] = {}
    while harness.core.has_work():
        harness.step()
        ends.update({number: harness.now for number, s in enumerate(streams) if s.ended and number not in ends})
    assert harness.roster.preemptions > 0
    assert list(ends) == [0, 1, 2]
    harness.assert_released()


def test_priorities_decide_who_gives_way_inside_a_tenant_only() -> None:
    harness = Harness(num_blocks=30, block_size=4)
    for name, tenant, priority in (("unimportant", "a", 5), ("important", "a", 0)):
        harness.add(make_request(name, tokens(8, priority), tenant=tenant, priority=priority, ignore_eos=True))
        harness.step()
    assert harness.roster.victim().request.id == "unimportant"
    harness.add(make_request("cheater", [1], tenant="b", priority=-99, ignore_eos=True))
    harness.step()
    assert harness.roster.victim().request.id == "cheater"


def test_one_that_gave_way_often_is_protected() -> None:
    harness = Harness(num_blocks=13, block_size=4)
    harness.add(make_request("senior", tokens(6), max_tokens=40, ignore_eos=True))
    harness.add(make_request("r", tokens(6, 1), max_tokens=40, ignore_eos=True))
    harness.step()
    [sequence] = harness.roster.requests["r"].sequences
    for _ in range(3):
        harness.roster.preempt(sequence)
        harness.drain_some(1)
    assert sequence.preemptions == 3 and sequence in harness.roster.preempted, "not enough blocks to promise it all"
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


def test_a_running_request_keeps_an_unregistered_adapter_through_preemption() -> None:
    harness = Harness()
    harness.adapters.register("a")
    stream = harness.add(make_request("r", tokens(6), "a", ignore_eos=True, max_tokens=20))
    harness.drain_some(3)
    harness.adapters.unregister("a")
    harness.roster.preempt(harness.roster.running[0])
    harness.drain()
    assert stream.reasons == [FinishReason.LENGTH] and harness.adapters.held == {}
    harness.assert_released()
