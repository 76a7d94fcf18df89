import pytest

from loraplex.engine.protocol import FinishReason

from ..fake_model import EOS
from ..harness import Harness, make_request, tokens


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
        harness.receive(harness.scheduler.commit(plan, harness.runner.submit(plan).result()))
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
