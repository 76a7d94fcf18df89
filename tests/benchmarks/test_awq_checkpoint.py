"""The benchmark's AWQ checkpoint is one that AutoAWQ could have written."""

import torch

from benchmarks.awq_checkpoint import GROUP, packed
from loraplex.quant.config.layouts import AwqLayout
from loraplex.quant.formats.read import read_weight
from loraplex.quant.formats.specification import Linear
from loraplex.quant.weights.rounding import IntegerGrid, round_to_integers


def test_its_words_are_read_as_the_weights_they_stand_for() -> None:
    weight = torch.randn(24, 2 * GROUP, generator=torch.Generator().manual_seed(0))
    found = read_weight(
        AwqLayout(group_size=GROUP, has_zeros=True), Linear("x", 24, 2 * GROUP), packed(weight, torch.float16)
    )
    expected = round_to_integers(weight, IntegerGrid(bits=4, symmetric=False, scale_dtype=torch.float16), GROUP)
    assert torch.equal(found.dequantized(), expected.dequantized())
