"""The tables that edit logits on a device, without the kernels that read them."""

import numpy as np
import pytest
import torch

from loraplex.engine.kernels.cuda.sampling.layout import RowParameters, make_buffers, make_shape
from loraplex.engine.sampling.cuda.rows import RowLines
from loraplex.engine.sampling.token_mask import TokenMask

from ...kernels.sampling_rows import make_row

INFINITY = float("inf")


def mask_of(*tokens: int) -> TokenMask:
    mask = TokenMask(frozenset(), frozenset(), 0)
    mask.learn(bytes([sum(1 << token for token in tokens)]), False, 0)
    return mask


def test_rows_that_come_again_are_what_new_ones_would_be() -> None:
    """In another order, fewer or more, and where tokens are blocked no more."""
    names = ("slot", "edits", "temperature", "logprobs")
    places = [RowParameters._fields.index(name) for name in names]
    lines = RowLines(make_buffers(make_shape(4, 8, 1), 4, torch.device("cpu")), 4)
    rows = [make_row(seed, temperature=0.5 + seed, logprobs=seed) for seed in range(3)]
    late = make_row(9, temperature=7.0, min_tokens=3, blocked_token_ids=(1,))
    slots = dict(zip(range(4), lines.records([*rows, late])[:, places[0]].tolist(), strict=True))

    def check(position: int, *chosen: int) -> None:
        asked = [[*rows, late][number].at(position) for number in chosen]
        found = lines.records(asked)
        alone = RowLines(make_buffers(make_shape(4, 8, 1), 4, torch.device("cpu")), 4).records(asked)
        assert found[:, places[0]].tolist() == [slots[number] for number in chosen]
        assert np.array_equal(found[:, places[1:]], alone[:, places[1:]])

    for position, chosen in enumerate(([0, 1, 2], [0, 1, 2], [2, 1, 0], [2, 0], [2, 0], [0, 1, 2]), 1):
        check(position, *chosen)
    for position in range(1, 6):
        check(position, 0, 3)


def test_masks_of_a_step_are_one_copy_and_their_biases_another(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers, copies = make_buffers(make_shape(3, 8, 1), 3, torch.device("cpu")), list[int]()
    to_device = RowLines._to_device

    def counted(lines: RowLines, values: np.ndarray) -> torch.Tensor:
        copies.append(len(values))
        return to_device(lines, values)

    monkeypatch.setattr(RowLines, "_to_device", counted)
    lines = RowLines(buffers, 3)
    plain = [make_row(seed, mask=mask_of(seed, 5)) for seed in range(3)]
    lines.records(plain)
    assert copies == [3, 3], "which lines, and their bits"
    biases = [{2: 4.0}, None, {5: -1.0, 3: 9.0}]
    rows = [make_row(seed, mask=mask_of(seed, 5), logit_bias=bias) for seed, bias in enumerate(biases)]
    slots = lines.records(rows)[:, RowParameters._fields.index("slot")].tolist()
    assert copies[2:] == [3, 3, 3, 3], "and where the three biases go, and what they are"
    allowed = [{0: 0.0, 5: 0.0}, {1: 0.0, 5: 0.0}, {2: 0.0, 5: -1.0}]
    wanted = [[bias.get(token, -INFINITY) for token in range(8)] for bias in allowed]
    assert buffers.bias[slots, :8].tolist() == wanted
