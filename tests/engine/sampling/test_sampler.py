"""The sampler against exact probabilities, transformers' own processors and torch in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as reference

from loraplex.engine.sampling.sampler import Sampler, SampleRow
from loraplex.engine.sampling_params import SamplingParams

VOCABULARY = 3000
NAN, INFINITY = float("nan"), float("inf")


def make_row(seed: int = 0, position: int = 0, **fields: Any) -> SampleRow:
    row_fields = {name: fields.pop(name) for name in ("blocked_token_ids", "logprobs") if name in fields}
    prompt, output = fields.pop("prompt", []), fields.pop("output", [])
    params = SamplingParams(**fields)
    params.verify(1 << 20)
    return SampleRow(params, seed, position, prompt, output, **row_fields)


def random_logits(rows: int, vocabulary: int = VOCABULARY, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def draws(logits: torch.Tensor, count: int, **fields: Any) -> np.ndarray:
    """Tokens drawn from one row of logits at `count` seeds."""
    rows = [make_row(seed=seed, **fields) for seed in range(count)]
    tokens: list[int] = []
    for start in range(0, count, 500):
        chunk = rows[start : start + 500]
        tokens += Sampler().sample(logits.expand(len(chunk), -1), chunk).token_ids
    return np.array(tokens)


def assert_distributed(tokens: np.ndarray, probabilities: torch.Tensor) -> None:
    """Pearson's chi-square at a one in a million level; nothing outside the support."""
    expected = probabilities.double().numpy() * len(tokens)
    observed = np.bincount(tokens, minlength=len(expected))
    assert observed[expected == 0].sum() == 0
    rare = expected < 10
    bins = [*zip(observed[~rare], expected[~rare], strict=True), (observed[rare].sum(), expected[rare].sum())]
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in bins if mean > 0)
    degrees = len(bins) - 1
    assert statistic < degrees + 4.75 * np.sqrt(2 * degrees) + 15


FILTERS: dict[str, dict[str, float]] = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "all": {"temperature": 1.4, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
}


def reference_logits(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """transformers' warpers in our order, in float64."""
    scores = logits.double()
    warpers: list[Callable[..., torch.Tensor]] = [reference.TemperatureLogitsWarper(params.temperature)]
    if params.min_p:
        warpers.append(reference.MinPLogitsWarper(params.min_p))
    if params.top_k > 0:
        warpers.append(reference.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(reference.TopPLogitsWarper(params.top_p))
    for warper in warpers:
        scores = warper(None, scores)
    return scores


@pytest.mark.parametrize("vocabulary", [40, VOCABULARY], ids=["sorted-whole", "prefiltered"])
@pytest.mark.parametrize("fields", FILTERS.values(), ids=FILTERS.keys())
def test_draws_follow_the_filtered_distribution(fields: dict[str, Any], vocabulary: int) -> None:
    logits = random_logits(1, vocabulary)
    probabilities = reference_logits(logits, SamplingParams(**fields)).softmax(-1)[0]
    assert_distributed(draws(logits, 8000, **fields), probabilities)


@pytest.mark.parametrize(
    "fields",
    [{"top_p": 0.99}, {"top_k": 1500}, {"top_k": 1100, "top_p": 0.97}, {"min_p": 0.001}, {"top_p": 0.9, "min_p": 1e-4}],
    ids=str,
)
def test_a_nearly_flat_row_that_keeps_more_than_the_candidates_is_exact(fields: dict[str, Any]) -> None:
    logits = random_logits(1, spread=0.3)
    kept = reference_logits(logits, SamplingParams(**fields)).softmax(-1)[0]
    assert int((kept > 0).sum()) > 1024
    tokens = draws(logits, 2500, **fields)
    assert kept[tokens].min() > 0
    assert_distributed(tokens % 50, torch.zeros(50, dtype=torch.float64).index_add_(0, torch.arange(3000) % 50, kept))


@pytest.mark.parametrize("fields", FILTERS.values(), ids=FILTERS.keys())
def test_all_equal_logits_keep_ties_as_transformers_does(fields: dict[str, Any]) -> None:
    logits = torch.zeros(1, VOCABULARY)
    tokens = draws(logits, 2000, **fields)
    whole = "top_p" not in fields
    limit = VOCABULARY if whole else int(np.ceil(fields["top_p"] * VOCABULARY))
    assert tokens.max() < limit and len(set(tokens.tolist())) > 0.4 * limit


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    kinds: list[dict[str, Any]] = [*FILTERS.values(), {"temperature": 0}, {"top_p": 0.99, "temperature": 50.0}]
    logits = random_logits(3 * len(kinds))
    rows = [make_row(seed=7, position=i, logprobs=3, **kinds[i % len(kinds)]) for i in range(len(logits))]
    together = Sampler().sample(logits, rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = Sampler().sample(logits[order], [rows[index] for index in order])
    for place, index in enumerate(order):
        alone = Sampler().sample(logits[index : index + 1], [rows[index]])
        assert alone.token_ids[0] == together.token_ids[index] == shuffled.token_ids[place]
        assert alone.logprobs[0] == together.logprobs[index] == shuffled.logprobs[place]


def test_uniform_numbers_are_uniform_and_keyed_by_seed_and_position() -> None:
    numbers = np.array([make_row(seed=s, position=p).uniform() for s in (-1, 0, 1, 2**63 - 1) for p in range(5000)])
    assert len(set(numbers.tolist())) == len(numbers) and numbers.min() >= 0 and numbers.max() < 1
    assert_distributed((numbers * 100).astype(int), torch.full((100,), 0.01))
    by_seed = numbers.reshape(4, -1)
    assert np.abs(np.corrcoef(np.vstack([by_seed, np.roll(by_seed, 1, axis=1)])) - np.eye(8)).max() < 0.06


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[0, [50, 900, 2999]] = 4.0
    assert Sampler().sample(logits, [make_row(temperature=0), make_row(temperature=0)]).token_ids == [50, 0]


@pytest.mark.parametrize("repetition", [1.3, 0.8])
def test_penalties_equal_their_definition(repetition: float) -> None:
    logits, prompt, output = random_logits(1), [1, 2, 2, 700], [700, 5, 5, 5, 9]
    penalties = {"repetition_penalty": repetition, "frequency_penalty": 0.7, "presence_penalty": -0.4}
    expected = reference.RepetitionPenaltyLogitsProcessor(repetition)(torch.tensor([prompt + output]), logits.double())
    counts = torch.bincount(torch.tensor(output), minlength=VOCABULARY)
    expected = (expected - 0.7 * counts - -0.4 * (counts > 0)).softmax(-1)[0]
    assert_distributed(draws(logits, 8000, prompt=prompt, output=output, **penalties), expected)


def test_counts_grow_with_the_output() -> None:
    generator = np.random.default_rng(0)
    row = make_row(prompt=[3, 3, 8], output=[], frequency_penalty=1.0)
    for token_id in generator.integers(0, 60, 300).tolist():
        row.output_token_ids.append(token_id)
        counts = row.counts()
        dense = np.zeros(60)
        dense[counts.ids] = counts.counts
        assert np.array_equal(dense, np.bincount(row.output_token_ids, minlength=60))
        assert sorted(counts.ids) == sorted({3, 8, *row.output_token_ids})


def test_bias_allowed_and_blocked_tokens() -> None:
    logits = random_logits(5)
    best = int(logits[0].argmax())
    rows = [
        make_row(temperature=0, logit_bias={17: 100.0}),
        make_row(temperature=0, allowed_token_ids=[4, 5, 6]),
        make_row(temperature=0, blocked_token_ids=(best,)),
        make_row(temperature=0, allowed_token_ids=[4, 5], logit_bias={6: 100.0, 4: -100.0}),
        make_row(temperature=1, allowed_token_ids=[4, 5], blocked_token_ids=(4,)),
    ]
    logits = logits[:1].expand(5, -1)
    blocked = logits[0].clone()
    blocked[best] = -INFINITY
    allowed = 4 + int(logits[0, 4:7].argmax())
    assert Sampler().sample(logits, rows).token_ids == [17, allowed, int(blocked.argmax()), 5, 5]


@pytest.mark.parametrize("poison", [NAN, INFINITY])
@pytest.mark.parametrize("fields", [{"temperature": 0}, {}, {"top_p": 0.9}, {"allowed_token_ids": [1]}], ids=str)
def test_a_poisoned_row_fails_alone(poison: float, fields: dict[str, Any]) -> None:
    logits = random_logits(3)
    rows = [make_row(seed=index, logprobs=1, **fields) for index in range(3)]
    clean = Sampler().sample(logits, rows)
    logits[1, 44] = poison
    sampled = Sampler().sample(logits, rows)
    assert clean.failed == [] and sampled.failed == [1] and sampled.logprobs[1] is None
    for index in (0, 2):
        assert sampled.token_ids[index] == clean.token_ids[index]
        assert sampled.logprobs[index] == clean.logprobs[index]


def test_a_row_with_every_token_masked_fails() -> None:
    row = make_row(allowed_token_ids=[4], blocked_token_ids=(4,))
    assert Sampler().sample(random_logits(1), [row]).failed == [0]
    assert Sampler().sample(torch.full((1, 9), -INFINITY), [make_row()]).failed == [0]


@pytest.mark.parametrize("fields", [{}, {"top_k": 5}, {"top_p": 1e-6}], ids=str)
@pytest.mark.parametrize("logits", [[-3e38, 3e38, 0.0], [-INFINITY, 1e-30, -INFINITY]], ids=str)
def test_extreme_logits_and_temperatures(logits: list[float], fields: dict[str, Any]) -> None:
    for temperature in (1e-30, 1.0):
        assert set(draws(torch.tensor([logits]), 50, temperature=temperature, **fields).tolist()) == {1}


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-45, 1e-38])
@pytest.mark.parametrize("fields", [{}, {"top_p": 5e-324}, {"min_p": 1.0}, {"top_k": 3}])
def test_the_smallest_temperatures_take_the_most_likely(temperature: float, fields: dict[str, Any]) -> None:
    assert set(draws(torch.tensor([1.0, 3.0, 2.999999, -5.0]), 20, temperature=temperature, **fields)) == {1}


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    logits = random_logits(2)
    rows = [make_row(seed=3, logprobs=5, logit_bias={11: 90.0}), make_row(seed=3, temperature=0, logprobs=0)]
    exact = logits.double().log_softmax(-1)
    biased, plain = Sampler().sample(logits, rows).logprobs
    assert biased is not None and plain is not None
    assert (biased.token_id, biased.rank) == (11, 1 + int((exact[0] > exact[0, 11]).sum()))
    assert biased.logprob == pytest.approx(exact[0, 11].item(), abs=1e-5)
    values, ids = exact[0].topk(5)
    assert [token_id for token_id, _ in biased.top] == ids.tolist()
    assert [value for _, value in biased.top] == pytest.approx(values.tolist(), abs=1e-5)
    assert (plain.rank, plain.top) == (1, [])


def test_prompt_logprobs() -> None:
    logits, tokens = random_logits(4), [5, 0, 2999, 77]
    exact = logits.double().log_softmax(-1)
    entries = Sampler().prompt_logprobs(logits, tokens, 2)
    for row, (token_id, entry) in enumerate(zip(tokens, entries, strict=True)):
        assert entry.token_id == token_id and entry.logprob == pytest.approx(exact[row, token_id].item(), abs=1e-5)
        assert [top_id for top_id, _ in entry.top] == exact[row].topk(2).indices.tolist()


def test_bfloat16_logits() -> None:
    logits = random_logits(2).bfloat16()
    rows = [make_row(temperature=0), make_row(seed=5, top_k=10)]
    assert Sampler().sample(logits, rows).token_ids == Sampler().sample(logits.float(), rows).token_ids
