"""Rows of every kind that a request can ask for, and what CudaSampler must answer for them."""

import random
from typing import Any

import torch

from loraplex.engine.sampling.sampler import Sampler
from loraplex.engine.sampling.state import Sampled, SampleRow
from loraplex.engine.sampling.token_mask import TokenMask
from loraplex.engine.sampling_params import SamplingParams

NUDGES = (-2e-6, 2e-6)
"""How far the uniform number may be off where exact sums and float64 part."""


class NudgedRow(SampleRow):
    """A row whose uniform number can be a little off."""

    nudge = 0.0

    def uniform(self) -> float:
        return min(max(super().uniform() + self.nudge, 0.0), 1 - 2.0**-53)


def make_row(seed: int = 0, position: int = 0, **fields: Any) -> SampleRow:
    row_fields = {name: fields.pop(name) for name in ("blocked_token_ids", "logprobs", "mask") if name in fields}
    prompt, output = fields.pop("prompt", []), fields.pop("output", [])
    params = SamplingParams(**fields)
    params.verify(1 << 20)
    return NudgedRow(params, seed, position, prompt, output, **row_fields)


def random_row(choose: random.Random, vocabulary: int) -> SampleRow:
    """Every field at its default about half of the time."""

    def tokens(count: int) -> list[int]:
        return [choose.randrange(vocabulary) for _ in range(count)]

    fields: dict[str, Any] = {"temperature": choose.choice([0.0, 0.3, 0.7, 1.0, 1.0, 1.7, 5.0])}
    if choose.random() < 0.5:
        fields["top_k"] = choose.choice([1, 2, 5, 50, vocabulary // 2, vocabulary + 3])
    if choose.random() < 0.5:
        fields["top_p"] = choose.choice([1e-9, 0.1, 0.5, 0.9, 0.99, 0.9999])
    if choose.random() < 0.3:
        fields["min_p"] = choose.choice([1e-4, 0.01, 0.1, 1.0])
    if choose.random() < 0.4:
        fields |= {"prompt": tokens(choose.randrange(40)), "output": tokens(choose.randrange(40))}
        fields["repetition_penalty"] = choose.choice([1.0, 0.7, 1.3])
        fields["frequency_penalty"], fields["presence_penalty"] = choose.uniform(-2, 2), choose.choice([0.0, 0.6, -1.0])
    if choose.random() < 0.3:
        fields["logit_bias"] = {token_id: choose.uniform(-9, 9) for token_id in tokens(7)}
    if choose.random() < 0.2:
        fields["allowed_token_ids"] = tokens(9)
    if choose.random() < 0.2:
        fields["blocked_token_ids"] = tuple(tokens(3))
    if choose.random() < 0.4:
        fields["logprobs"] = choose.choice([0, 1, 5, 20])
    own = random.Random(str(fields))
    if own.random() < 0.3 and not {"allowed_token_ids", "blocked_token_ids"} & fields.keys():
        fields["mask"] = random_mask(own, vocabulary)
    return make_row(choose.randrange(-(2**63), 2**63), choose.randrange(2**20), **fields)


def random_mask(choose: random.Random, vocabulary: int) -> TokenMask:
    """Of as many tokens, of some fewer, or of a longer vocabulary."""
    size = max(1, vocabulary // 8 + choose.choice([-5, 0, 1, 9]))
    mask = TokenMask(frozenset(), frozenset(), 0)
    mask.learn(bytes(choose.randrange(256) & choose.randrange(256) for _ in range(size)), False, 0)
    return mask


def check(sampled: Sampled, logits: torch.Tensor, rows: list[SampleRow], tolerance: float = 2e-5) -> int:
    """As `Sampler` answers, which must be right next to a border between two tokens where it is not the same; how
    often that was so."""
    expected, bordering = Sampler().sample(logits, rows), 0
    assert sampled.failed == expected.failed
    for index, row in enumerate(rows):
        if index in expected.failed:
            assert sampled.logprobs[index] is None
            continue
        if sampled.token_ids[index] != expected.token_ids[index]:
            assert sampled.token_ids[index] in nudged_tokens(logits[index : index + 1], row), row
            bordering += 1
            continue
        found, wanted = sampled.logprobs[index], expected.logprobs[index]
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert (found.token_id, found.rank) == (wanted.token_id, wanted.rank)
            assert abs(found.logprob - wanted.logprob) <= tolerance * max(1, abs(wanted.logprob))
            check_top(found.top, wanted.top, tolerance)
    return bordering


def check_top(found: list[tuple[int, float]], wanted: list[tuple[int, float]], tolerance: float) -> None:
    """The same log-probabilities, and the same tokens but where those of two are equal but for the rounding."""
    assert len(found) == len(wanted)
    for place, ((found_id, value), (wanted_id, wanted_value)) in enumerate(zip(found, wanted, strict=True)):
        assert abs(value - wanted_value) <= tolerance * max(1, abs(wanted_value))
        around = [other for _, other in wanted[max(place - 1, 0) : place + 2]]
        close = sum(abs(other - wanted_value) <= tolerance * max(1, abs(wanted_value)) for other in around) > 1
        assert found_id == wanted_id or close or place == len(wanted) - 1


def nudged_tokens(logits: torch.Tensor, row: SampleRow) -> set[int]:
    assert isinstance(row, NudgedRow)
    tokens = set()
    for nudge in NUDGES:
        row.nudge = nudge
        tokens |= set(Sampler().sample(logits, [row]).token_ids)
    row.nudge = 0.0
    return tokens
