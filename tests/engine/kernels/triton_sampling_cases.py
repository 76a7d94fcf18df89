"""CudaSampler against Sampler, in triton's interpreter: test_triton_interpreted.py runs this by itself.

Chunks, tiles and the room for candidates are small here, so that small vocabularies have many of them.
"""

import random
from typing import Any

import pytest
import torch

from loraplex.engine.kernels.cuda.sampling import layout
from loraplex.engine.kernels.cuda.sampling.layout import BIASED, IDLE, PENALIZED
from loraplex.engine.sampling.cuda import sampler as cuda_sampler
from loraplex.engine.sampling.sampler import Sampler
from loraplex.engine.sampling.state import SampleRow
from tests.engine.inline_stream import make_sampler
from tests.triton_interpreter import one_patch_a_module, poisoned_memory

from .sampling_rows import check, check_top, make_row, random_row

__all__ = ["one_patch_a_module", "poisoned_memory"]
NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("CHUNK", 512), ("TILE", 128), ("SORTED", 32), ("ROOM", 128), ("BUCKETS", 64)):
        monkeypatch.setattr(layout, name, size)


def random_logits(rows: int, vocabulary: int, seed: int) -> torch.Tensor:
    """Peaked, flat and coarse rows; the last have many equal logits."""
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3
    logits[1::3] *= 0.2
    logits[2::3] = logits[2::3].round()
    logits[3::7, ::5] = -INFINITY
    return logits


@pytest.mark.parametrize(
    ("vocabulary", "rows", "dtype"),
    [(1100, 16, torch.float32), (640, 12, torch.float16), (5, 12, torch.float32), (1, 3, torch.float32)],
    ids=str,
)
@pytest.mark.usefixtures("small_tiles")
def test_every_kind_of_row_is_sampled_as_on_the_cpu(vocabulary: int, rows: int, dtype: torch.dtype) -> None:
    choose, sampler = random.Random(vocabulary), make_sampler(rows, vocabulary)
    logits = random_logits(rows, vocabulary, vocabulary).to(dtype)
    asked = [random_row(choose, vocabulary) for _ in range(rows)]
    assert check(sampler.sample(logits, asked).wait(), logits, asked) <= rows // 20


def test_a_vocabulary_of_a_real_model() -> None:
    """Larger ones are sampled on a GPU, where that takes no minute."""
    fields: list[dict[str, Any]] = [
        {"top_k": 50, "temperature": 2.0, "logprobs": 20},
        {"temperature": 0},
        {"top_p": 0.9},
        {"top_k": 5, "top_p": 0.7},
    ]
    logits = random_logits(4, 32001, 1)
    rows = [make_row(seed, 3, **row) for seed, row in enumerate(fields)]
    assert check(make_sampler(4, 32001).sample(logits, rows).wait(), logits, rows) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_candidates_are_sorted_or_searched_and_the_token_is_the_same(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is known of where the filters end: sorted, listed for a search, or not even listed."""
    monkeypatch.setattr(layout, "CHUNK", 256)
    filters: list[dict[str, Any]] = [{"top_p": 0.9}, {"top_k": 3}, {"top_k": 40, "top_p": 0.8}, {"min_p": 0.02}]
    rows = [make_row(seed, 5, **filters[seed % 4], temperature=0.5 + seed % 3) for seed in range(8)]
    logits, ways = random_logits(8, 400, 12).to(dtype), []
    for sorted_most, room, buckets in ((512, 512, 2048), (1, 512, 8), (1, 1, 1)):
        for name, size in (("SORTED", sorted_most), ("ROOM", room), ("BUCKETS", buckets), ("TILE", 512)):
            monkeypatch.setattr(layout, name, size)
        sampler = make_sampler(8, 400)
        found = sampler.sample(logits, rows).wait()
        check(found, logits, rows)
        ways.append((found.token_ids, int((sampler._buffers.listed > room).sum())))
    assert all(tokens == ways[0][0] for tokens, _ in ways)
    assert ways[0][1] == 0 and ways[-1][1] >= 7


@pytest.mark.usefixtures("small_tiles")
def test_a_row_does_not_depend_on_its_neighbours_nor_on_its_place() -> None:
    choose, vocabulary = random.Random(3), 600
    rows, logits = [random_row(choose, vocabulary) for _ in range(7)], random_logits(7, vocabulary, 3)
    together = make_sampler(16, vocabulary).sample(logits, rows).wait()
    for index in range(1, 7, 2):
        alone = make_sampler(1, vocabulary).sample(logits[index : index + 1], rows[index : index + 1]).wait()
        assert alone.token_ids[0] == together.token_ids[index] and alone.logprobs[0] == together.logprobs[index]


@pytest.mark.usefixtures("small_tiles")
def test_all_equal_logits_are_told_apart_by_their_ids() -> None:
    logits = torch.zeros(12, 300)
    fields = [{}, {"top_p": 0.9}, {"top_p": 0.5, "top_k": 7}, {"min_p": 1.0}, {"temperature": 0}, {"top_p": 1e-9}]
    rows = [make_row(seed, 0, **fields[seed % 6]) for seed in range(12)]
    sampled = make_sampler(12, 300).sample(logits, rows).wait()
    assert sampled.token_ids == Sampler().sample(logits, rows).token_ids


@pytest.mark.usefixtures("small_tiles")
def test_extreme_logits_and_temperatures() -> None:
    fields = [{"temperature": 1e-30}, {"temperature": 5e-324, "top_k": 2}, {"temperature": 1e-38, "top_p": 5e-324}, {}]
    logits = torch.tensor([[-3e38, 3e38, 0.0], [-INFINITY, 1e-30, -INFINITY], [-0.0, 1e-3, 0.0]])
    for values in logits:
        rows = [make_row(seed, **row) for seed, row in enumerate(fields[: 4 if values[1] > 1 else 3])]
        assert make_sampler(4, 3).sample(values.expand(len(rows), -1), rows).wait().token_ids == [1] * len(rows)


@pytest.mark.usefixtures("small_tiles")
def test_failing_rows_fail_alone() -> None:
    logits = random_logits(8, 300, 4)
    logits[1, 44], logits[2, 290], logits[3], logits[4, 7] = NAN, INFINITY, -INFINITY, NAN
    fields = [{}, {"top_p": 0.9}, {}, {"temperature": 0}, {"allowed_token_ids": [1]}, {"min_p": 0.1}]
    rows = [make_row(1, logprobs=2, **row) for row in fields]
    rows += [make_row(1, logprobs=1, allowed_token_ids=[4], blocked_token_ids=(4,)), make_row(7, logprobs=1)]
    sampled = make_sampler(8, 300).sample(logits, rows).wait()
    assert sampled.failed == [1, 2, 3, 4, 6]
    check(sampled, logits, rows)


@pytest.mark.usefixtures("small_tiles")
def test_drawn_tokens_are_counted_on_the_device_before_the_host_knows_them() -> None:
    """Two steps ahead of the list, then a step that is drawn again, then one of a row that lost its line."""
    vocabulary, logits = 40, random_logits(1, 40, 5) * 0.1
    sampler = make_sampler(2, vocabulary)
    penalties = {"prompt": [3, 3, 8], "frequency_penalty": 1.5, "repetition_penalty": 1.2, "presence_penalty": 0.5}
    row, twin = make_row(9, 0, **penalties), make_row(9, 0, **penalties)
    for position in (0, 1, 2, 3, 3, 4, 5, 6):
        row.position = twin.position = position
        del twin.output_token_ids[position:]
        twin = make_row(9, position, output=list(twin.output_token_ids), **penalties)
        if position == 3:
            row.output_token_ids[:] = twin.output_token_ids
        if position == 6:
            row.output_token_ids[:] = twin.output_token_ids
            for other in range(2):
                sampler.sample(logits, [make_row(other)])
        (token,) = sampler.sample(logits, [row]).wait().token_ids
        assert [token] == Sampler().sample(logits, [twin]).token_ids
        twin.output_token_ids.append(token)


@pytest.mark.usefixtures("small_tiles")
def test_tokens_that_are_blocked_for_a_while_come_back() -> None:
    logits, sampler = random_logits(1, 40, 6), make_sampler(2, 40)
    best = int(logits[0].argmax())
    row = make_row(temperature=0, blocked_token_ids=(best,))
    assert sampler.sample(logits, [row]).wait().token_ids != [best]
    row.position, row.blocked_token_ids = 1, ()
    assert sampler.sample(logits, [row]).wait().token_ids == [best]


@pytest.mark.usefixtures("small_tiles")
def test_launches_made_for_other_rows_are_right_for_these() -> None:
    """What a CUDA graph replays: as many rows as it was captured with, the rest of them idle, over the same memory."""
    choose, sampler, vocabulary = random.Random(7), make_sampler(3, 300), 300
    logits = random_logits(3, vocabulary, 7)
    for count in (3, 0, 2):
        rows = [random_row(choose, vocabulary) for _ in range(count)]
        sampler.upload(sampler.prepare(rows).records)
        sampler.token_ids.fill_(-7)
        sampler.launch(logits)
        assert sampler.token_ids[count:].tolist() == [-7] * (3 - count)
        check(sampler.fetch([row.logprobs for row in rows]).wait(), logits[:count], rows)


@pytest.mark.usefixtures("small_tiles")
def test_of_an_idle_row_no_more_is_read_than_that_it_is_idle() -> None:
    """What else lies in its record may be any number, a count of tokens to describe among them."""
    sampler, logits, rows = make_sampler(3, 300), random_logits(3, 300, 11), [make_row(logprobs=2)]
    sampler.upload(sampler.prepare(rows).records)
    parameters, results = sampler._buffers.parameters, sampler._buffers.results
    parameters[1:], parameters[1:, cuda_sampler.MODE], results[:, 1:] = 3, IDLE, 0
    sampler.launch(logits)
    assert not results[:, 1:].any()
    check(sampler.fetch([2]).wait(), logits[:1], rows)


@pytest.mark.usefixtures("small_tiles")
def test_vocabularies_of_a_step_may_be_shorter() -> None:
    sampler = make_sampler(4, 700)
    for vocabulary in (700, 2):
        logits, choose = random_logits(4, 700, 8)[:, :vocabulary], random.Random(vocabulary)
        rows: list[SampleRow] = [random_row(choose, vocabulary) for _ in range(4)]
        check(sampler.sample(logits, rows).wait(), logits, rows)


@pytest.mark.usefixtures("small_tiles")
def test_prompt_logprobs() -> None:
    logits, token_ids = random_logits(5, 300, 9), [5, 0, 299, 77, 1]
    found = make_sampler(2, 300).prompt_logprobs(logits, token_ids, 4).wait()
    for entry, wanted in zip(found, Sampler().prompt_logprobs(logits, token_ids, 4), strict=True):
        assert (entry.token_id, entry.rank) == (wanted.token_id, wanted.rank)
        assert entry.logprob == pytest.approx(wanted.logprob, abs=1e-5)
        check_top(entry.top, wanted.top, 1e-5)


def test_rows_that_edit_nothing_read_no_tables() -> None:
    rows = [make_row(), make_row(logit_bias={1: 2.0}), make_row(presence_penalty=1.0)]
    edits = make_sampler(3, 40)._lines.records(rows)[:, layout.RowParameters._fields.index("edits")]
    assert edits.tolist() == [0, BIASED, PENALIZED]
    assert cuda_sampler.MODE == 0
