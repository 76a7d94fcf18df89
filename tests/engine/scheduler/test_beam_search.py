"""Beams in the scheduler: places, blocks, copies. The harness compares every answer with a search of its own."""

from typing import Any

import pytest

from loraplex.engine.field_types import ParameterError
from loraplex.engine.protocol import BeamSearch, FinishReason, GenerateRequest, Tokens
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.scheduler.beam_search import check_beam_params
from loraplex.engine.structured_outputs import StructuredOutputs

from ..harness import Harness, make_request, tokens


def beams(name: str = "beams", prompt: int = 6, **params: Any) -> GenerateRequest:
    return make_request(name, tokens(prompt), beam_search=BeamSearch(), **({"n": 4} | params))


@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_blocks_are_shared_and_only_partly_filled_ones_copied(block_size: int, prefix_caching: bool) -> None:
    harness = Harness(num_blocks=128, block_size=block_size, enable_prefix_caching=prefix_caching)
    harness.add(beams(prompt=12, max_tokens=16, ignore_eos=True))
    most, copies = 0, 0
    while harness.core.has_work():
        harness.step_on()
        request = harness.request_table.requests.get("beams")
        running = request.running() if request is not None else []
        most = max(most, len({block for sequence in running for block in sequence.blocks}))
        copies += sum(sequence.copied_from is not None for sequence in running)
    assert most < 4 * -(-28 // block_size) or block_size == 8
    assert (copies > 0) == (block_size > 1)
    harness.assert_released()


def test_all_outputs_come_at_the_end_best_first() -> None:
    harness = Harness()
    stream = harness.add(beams(max_tokens=5, logprobs=1))
    harness.drain()
    assert [message.index for message in stream.messages] == [0, 1, 2, 3]
    sums = [sum(entry.logprob for entry in message.logprobs or ()) for message in stream.messages]
    lengths = [len(message.token_ids) for message in stream.messages]
    scores = [total / length for total, length in zip(sums, lengths, strict=True)]
    assert scores == sorted(scores, reverse=True)
    assert all(len(entry.top) == 1 for message in stream.messages for entry in message.logprobs or ())


def test_others_run_beside_and_find_places_when_it_has_ended() -> None:
    harness = Harness(max_num_seqs=5)
    for number in range(3):
        harness.add(make_request(f"before{number}", tokens(5, seed=number), max_tokens=9))
    harness.add(beams())
    for number in range(3):
        harness.add(make_request(f"after{number}", tokens(5, seed=9 + number), max_tokens=9))
    harness.drain()
    harness.assert_released()


def test_a_search_starts_only_where_all_its_beams_have_a_place() -> None:
    harness = Harness(max_num_seqs=4)
    harness.add(make_request("first", tokens(4), max_tokens=30, ignore_eos=True))
    harness.step()
    search = harness.add(beams())
    harness.drain_some(10)
    assert search.messages == [] and len(harness.request_table.running) == 1
    harness.drain()
    assert len(search.messages) == 4


def test_two_searches_that_fit_only_one_after_the_other_both_end() -> None:
    harness = Harness(num_blocks=16, block_size=4, max_num_seqs=8)
    harness.add(beams("one", prompt=8, max_tokens=12, ignore_eos=True))
    harness.add(beams("two", prompt=8, max_tokens=12, ignore_eos=True))
    harness.add(make_request("alone", tokens(20), max_tokens=12))
    harness.drain()
    assert harness.request_table.preemptions == 0
    harness.assert_released()


@pytest.mark.parametrize("index", [None, 0, 3])
@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_a_search_is_ended_as_a_whole(index: int | None, steps: int) -> None:
    harness = Harness()
    stream = harness.add(beams(max_tokens=20, ignore_eos=True))
    harness.drain_some(steps)
    harness.abort("beams", index)
    harness.drain()
    assert stream.reasons == [FinishReason.ABORT] * 4
    harness.assert_released()


def test_logits_that_mean_nothing_end_it_with_an_error() -> None:
    harness = Harness()
    stream = harness.add(beams())
    harness.runner.poisoned.add("beams")
    harness.drain()
    assert stream.failure is not None and stream.failure.kind == "internal"
    harness.assert_released()


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {3: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [3, 4]}, "allowed_token_ids"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"stop": ["x"]}, "stop"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "max_tokens": 0}, "prompt_logprobs"),
        ({"n": 16}, "n"),
        ({"n": 8, "stop_token_ids": list(range(1, 14))}, "n"),
    ],
)
def test_what_a_search_cannot_have_is_refused_by_name(params: dict[str, Any], field: str) -> None:
    with pytest.raises(ParameterError) as refused:
        Harness().add(beams(**params))
    assert refused.value.parameter == field


def test_a_constrained_search_is_refused() -> None:
    with pytest.raises(ParameterError, match="structured_outputs"):
        check_beam_params(SamplingParams(n=2, structured_outputs=StructuredOutputs(regex=".*")))


def test_no_beam_is_computed_before_it_is_chosen_where_steps_overlap() -> None:
    harness = Harness(num_blocks=128)
    harness.runner.depth = 2
    harness.add(beams("one", max_tokens=9))
    harness.add(beams("two", max_tokens=7, ignore_eos=True))
    while harness.core.has_work():
        harness.step()
    harness.assert_released()


def test_a_search_that_never_fits_in_the_cache_is_refused_in_numbers() -> None:
    with pytest.raises(ValueError, match=r"4 beams of the prompt's 6 tokens and up to 50 of output need 212 tokens"):
        Harness(num_blocks=20).add(beams(max_tokens=50))


def test_without_a_bound_of_its_own_it_goes_on_as_far_as_all_beams_fit() -> None:
    harness = Harness(num_blocks=20, max_model_len=60)
    stream = harness.add(beams(max_tokens=None, ignore_eos=True))
    harness.drain()
    assert [len(output) for output in stream.outputs] == [(1 + 18 // 4) * 4 + 1 - 6] * 4


def test_its_tokens_count_for_its_tenant() -> None:
    harness = Harness()
    stream = harness.add(beams(max_tokens=6, ignore_eos=True))
    harness.drain()
    answered = sum(len(message.token_ids) for message in stream.messages if isinstance(message, Tokens))
    assert answered == 24 and harness.scheduler.generation_tokens == 1 + 5 * 4
