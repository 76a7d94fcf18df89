"""What recurrent states do to admission and to the prefix cache. The fake runner checks every state that is read."""

import pytest

from loraplex.engine.kv_cache.state_pool import StatePool
from loraplex.engine.protocol import BeamSearch

from ..harness import Harness, make_request, tokens


def new_harness(slots: int = 9, **fields: object) -> Harness:
    return Harness(states=StatePool(slots), **fields)  # type: ignore[arg-type]


def answer(harness: Harness, name: str, prompt: list[int], **params: object) -> int:
    """Prompt tokens that it did not compute."""
    stream = harness.add(make_request(name, prompt, **params))  # type: ignore[arg-type]
    harness.drain()
    assert stream.failure is None
    return stream.messages[0].cached_tokens


def test_a_prompt_that_comes_again_begins_at_its_last_whole_block() -> None:
    harness = new_harness(block_size=4)
    assert answer(harness, "a", tokens(23)) == 0
    assert answer(harness, "b", tokens(23)) == 20
    assert answer(harness, "c", tokens(23) + tokens(6, seed=1)) == 20


def test_a_prefix_that_was_asked_for_twice_is_kept() -> None:
    """The first request knows no better than to keep its end. The second sees where the two part, the third profits."""
    harness, stem = new_harness(block_size=4), tokens(16)
    assert answer(harness, "a", stem + tokens(10, seed=1)) == 0
    assert answer(harness, "b", stem + tokens(10, seed=2)) == 0
    assert answer(harness, "c", stem + tokens(10, seed=3)) == 16


def test_without_slots_to_spare_the_cache_serves_what_it_can() -> None:
    """One sequence at a time, and its snapshot would need a second slot: nothing is cached, and nothing stalls."""
    harness = new_harness(slots=2, block_size=4)
    assert [answer(harness, name, tokens(23)) for name in "abc"] == [0, 0, 0]


def test_the_last_free_snapshot_becomes_the_state_of_who_begins_with_it() -> None:
    harness = new_harness(slots=3, block_size=4)
    answer(harness, "a", tokens(23))
    [snapshot] = harness.states.cached()  # type: ignore[union-attr]
    other = harness.add(make_request("b", tokens(3, seed=1), max_tokens=40, ignore_eos=True))
    harness.step()
    harness.add(make_request("c", tokens(23), ignore_eos=True))
    harness.step()
    [_, sequence] = harness.request_table.running
    assert (sequence.state, sequence.request.cached_tokens) == (snapshot, 20)
    harness.drain()
    assert other.ended
    harness.assert_released()


def test_an_adapters_states_are_its_own() -> None:
    harness = new_harness(block_size=4)
    harness.adapters.register("x", "y")
    assert answer(harness, "a", tokens(23), adapter="x") == 0
    assert answer(harness, "b", tokens(23)) == 0
    assert answer(harness, "c", tokens(23), adapter="y") == 0
    assert answer(harness, "d", tokens(23), adapter="x") == 20
    assert answer(harness, "e", tokens(23), adapter="x", tenant="other") == 0


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [21, 22, 3, 1])
def test_choices_compute_their_prompt_once(caching: bool, length: int) -> None:
    harness = new_harness(block_size=4, enable_prefix_caching=caching)
    harness.add(make_request("a", tokens(length), n=4, temperature=1.0))
    harness.drain()
    # Each of the others computes the last token again, for its logits.
    assert harness.scheduler.prompt_tokens == length + 3
    harness.assert_released()


def test_no_more_sequences_run_than_have_states() -> None:
    harness = new_harness(slots=4)
    for number in range(9):
        harness.add(make_request(f"r{number}", tokens(9, seed=number)))
    most = 0
    while harness.core.has_work():
        harness.step_on()
        most = max(most, len(harness.request_table.running))
    assert most == 3
    harness.assert_released()
    with pytest.raises(ValueError, match="4 beams run at once, and the engine runs at most 3"):
        harness.add(make_request("beams", tokens(5), n=4, beam_search=BeamSearch()))


def test_what_a_failed_request_kept_is_not_found() -> None:
    harness = new_harness(block_size=4, max_num_batched_tokens=8)
    stream = harness.add(make_request("a", tokens(23)))
    harness.drain_some(3)
    assert harness.states is not None and harness.states.num_cached == 1
    harness.runner.poisoned.add("a")
    harness.drain()
    assert stream.failure is not None and harness.states.num_cached == 0
    assert answer(harness, "b", tokens(23)) == 0


def test_a_preempted_sequence_gives_its_state_back() -> None:
    harness = new_harness()
    harness.add(make_request("a", tokens(9)))
    harness.step()
    [sequence] = harness.request_table.running
    assert sequence.state is not None
    harness.request_table.preempt(sequence)
    assert sequence.state is None and harness.request_table.check_integrity() == []
    harness.drain()
    harness.assert_released()


def test_a_model_without_recurrent_layers_holds_none() -> None:
    harness = Harness()
    harness.add(make_request("a", tokens(9), n=2))
    harness.drain_some(3)
    assert all(sequence.state is None and not sequence.kept_at for sequence in harness.request_table.running)
