from typing import Any

import pytest

from loraplex.engine.protocol import FinishReason

from .fake_adapters import FakeAdapters
from .fake_model import INVOCATIONS, INVOKING
from .harness import Harness, make_request, tokens

# Prefix cache


def test_a_known_prefix_is_not_computed_again_but_its_last_token_is() -> None:
    harness = Harness(block_size=4)
    prompt = tokens(16)
    harness.add(make_request("first", prompt))
    harness.drain()
    again = harness.add(make_request("again", prompt))
    plan = harness.scheduler.schedule()
    assert [(item.start, item.count) for item in plan.scheduled] == [(12, 4)]
    harness.receive(harness.scheduler.commit(plan, harness.runner.submit(plan).result()))
    harness.drain()
    assert again.messages[0].cached_tokens == 12
    assert (harness.scheduler.prefix_queries, harness.scheduler.prefix_hits) == (32, 12)


@pytest.mark.parametrize(
    "other",
    [{"tenant": "other"}, {"adapter": "a"}, {"adapter": "b", "scale": 2.0}, {"adapter": "c"}, {"adapter": ("a", "b")}],
)
def test_nothing_is_shared_across_tenants_adapters_or_scales(other: dict[str, Any]) -> None:
    harness = Harness(adapters=FakeAdapters(capacity=4))
    harness.adapters.register("a", "b", "c")
    owners: list[dict[str, Any]] = [{}, {"adapter": "b"}]
    for number, owner in enumerate(owners):
        harness.add(make_request(f"first{number}", tokens(16), **owner))
        harness.drain()
    stream = harness.add(make_request("second", tokens(16), **other))
    harness.drain()
    assert stream.messages[0].cached_tokens == 0


@pytest.mark.parametrize("place", [7, 8, 9, 11, 14])
@pytest.mark.parametrize("names", [(None, "late"), ("late", None), ("late", "latest")])
def test_what_stands_before_an_adapter_begins_is_the_bases(names: tuple[str | None, str | None], place: int) -> None:
    """Whoever comes first, the other finds the blocks of 4 before the one in which the adapter begins."""
    harness = Harness(block_size=4)
    harness.adapters.register(*INVOCATIONS)
    prompt = tokens(24, seed=2)
    prompt[place : place + 2] = [INVOKING] * 2
    streams = []
    for number, name in enumerate(names):
        streams.append(harness.add(make_request(f"r{number}", prompt, adapter=name)))
        harness.drain()
    first, second = (stream.messages[0].cached_tokens for stream in streams)
    began = [place + (name == "late") for name in names if name is not None]
    assert (first, second) == (0, min(began) // 4 * 4)
    again = harness.add(make_request("again", prompt, adapter=names[0]))
    harness.drain()
    assert again.messages[0].cached_tokens == 20
    harness.assert_released()


def test_an_adapter_that_is_not_invoked_is_refused_before_anything_runs() -> None:
    harness = Harness(adapters=FakeAdapters(capacity=3))
    harness.adapters.register("a", *INVOCATIONS)
    assert INVOKING not in tokens(8)
    streams = [
        harness.add(make_request("alone", tokens(8), adapter="late")),
        harness.add(make_request("summed", [*tokens(8), INVOKING], adapter=("a", "late", "latest"))),
    ]
    harness.drain()
    for stream, (name, sought) in zip(streams, [("late", [7]), ("latest", [7, 7])], strict=True):
        assert stream.failure is not None and stream.failure.kind == "invalid"
        assert f"adapter {name} acts from its invocation tokens on" in stream.failure.message
        assert str(sought) in stream.failure.message
    harness.assert_released()


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
    harness.receive(harness.scheduler.commit(plan, harness.runner.submit(plan).result()))
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
        seeds.append([sequence.row.seed for sequence in harness.request_table.requests[name].sequences])
    assert seeds[0] == seeds[1] and len({seed for pair in seeds[1:] for seed in pair}) == 6
