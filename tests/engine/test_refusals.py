from typing import Any

import pytest

from loraplex.engine.scheduler.scheduler import Overloaded

from .fake_model import EOS, VOCAB
from .harness import Harness, make_limits, make_request, tokens


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [1] * 64}, "the prompt has 64 tokens, but prompt and output together may have 64"),
        ({"prompt": [1, VOCAB]}, f"token id {VOCAB}, outside the vocabulary of {VOCAB}"),
        ({"prompt": [1, -1]}, "token id -1"),
        ({"prompt": [1], "temperature": -1.0}, "temperature must be between 0.0 and 100.0"),
        ({"prompt": [1], "adapter": "a", "scale": float("nan")}, "scale must be a finite number, got nan"),
        ({"prompt": [1], "adapter": ("a", "b", "a")}, "an adapter is named twice"),
        ({"prompt": [1], "adapter": tuple("abcdefghi")}, "9 adapters were asked for; at most 8"),
        ({"prompt": [1], "min_tokens": 1, "allowed_token_ids": [EOS]}, "forbids every token of allowed_token_ids"),
    ],
)
def test_what_is_wrong_is_refused_in_words(harness: Harness, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        harness.add(make_request("r", **changes))
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


def test_who_fills_the_queue_keeps_nobody_out_of_it() -> None:
    """The last that came of the tenant with most, and within it of the least importance, goes."""
    harness = Harness(max_queue=4, max_num_seqs=1)
    harness.add(make_request("running", [1], ignore_eos=True))
    harness.step()
    streams = {
        name: harness.add(make_request(name, [1], tenant="crowd", priority=priority))
        for name, priority in (("first", 0), ("important", -1), ("second", 0), ("third", 0))
    }
    with pytest.raises(Overloaded, match="4 requests wait already"):
        harness.add(make_request("fifth", [1], tenant="crowd"))
    for name, gone in (("one", "third"), ("two", "second")):
        with pytest.raises(ValueError, match="id 'first' is running already"):
            harness.core.add(make_request("first", [1], tenant="other"))
        assert streams[gone].failure is None
        harness.add(make_request(name, [1], tenant="other"))
        failure = streams[gone].failure
        assert failure is not None and failure.kind == "overloaded" and "of yours wait" in failure.message
    with pytest.raises(Overloaded, match="4 requests wait already"):
        harness.add(make_request("three", [1], tenant="other"))
    assert streams["first"].failure is streams["important"].failure is None
    harness.drain()
    harness.assert_released()


def test_requests_that_bring_no_seed_draw_theirs() -> None:
    def seeds(seed: int | None, own: tuple[int | None, ...] = (None, 5, None)) -> list[int]:
        harness = Harness(seed=seed)
        for index, given in enumerate(own):
            harness.add(make_request(f"r{index}", [1], seed=given))
        return [harness.request_table.requests[f"r{index}"].sequences[0].row.seed for index in range(len(own))]

    assert seeds(3) == seeds(3) and len({*seeds(3), *seeds(4)}) == 5
    assert seeds(None)[0] != seeds(None)[0] and seeds(None)[1] == seeds(3)[1]
    assert seeds(3, (None, None))[1] == seeds(3)[2], "one that brings its own takes none of the others'"


def test_a_budget_below_the_sequences_is_refused() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens 4 is below max_num_seqs 8"):
        make_limits(max_num_batched_tokens=4, max_num_seqs=8)
