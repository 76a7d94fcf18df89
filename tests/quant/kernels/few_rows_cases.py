"""The product of a few rows with a weight of 16 bits, in triton's interpreter: test_few_rows.py runs this by itself."""

import pytest
import torch

from loraplex.quant.kernels.cuda.card import find_card
from loraplex.quant.kernels.cuda.dense.few_rows import MOST_ROWS, multiply_few_rows, share_out
from loraplex.quant.kernels.cuda.merge import find_arrivals
from tests.cards import use_processors
from tests.triton_interpreter import last_program_first, one_patch_a_module, poisoned_memory, rounding

__all__ = ["one_patch_a_module", "poisoned_memory", "rounding"]
DTYPES = [torch.bfloat16, torch.float16]
TOLERANCE = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Half a unit in the last place of a result, and as much again: sums are exact to fp32."""
SHAPES = [(64, 512), (130, 256), (70, 1024), (33, 200), (7, 131)]
"""Outputs and inputs."""


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    y = torch.full((len(x), len(weight)), float("nan"), dtype=x.dtype)
    multiply_few_rows(y, x, weight, bias)
    assert not find_arrivals(x.device).any()
    return y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_equals_the_definition(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    for rows in (1, 3, MOST_ROWS):
        x = torch.randn(rows, inputs).to(dtype)
        for own in (None, bias):
            wanted = x.double() @ weight.double().T + (0 if own is None else own.double())
            torch.testing.assert_close(multiply(x, weight, own).double(), wanted, rtol=TOLERANCE[dtype], atol=1e-4)


def test_parts_are_added_up_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    use_processors(monkeypatch, 3)
    x, weight = torch.randn(5, 2048).bfloat16(), torch.randn(130, 2048).bfloat16()
    shares = share_out(130, 2048, find_card(x.device))
    assert shares.programs > 3 and shares.runs % 16, "a program ends one tile and begins another"
    first = multiply(x, weight)
    last_program_first(monkeypatch)
    assert torch.equal(multiply(x, weight), first)
    torch.testing.assert_close(first.double(), x.double() @ weight.double().T, rtol=2**-8, atol=1e-4)


def test_not_a_number_of_one_row_stays_there() -> None:
    x, weight = torch.randn(4, 256).bfloat16(), torch.randn(70, 256).bfloat16()
    clean = multiply(x, weight)
    x[2, 3] = float("nan")
    found = multiply(x, weight)
    assert found[2].isnan().all()
    found[2] = clean[2]
    assert torch.equal(found, clean)


def test_what_does_not_fit_is_refused() -> None:
    x, weight = torch.randn(9, 64).bfloat16(), torch.randn(8, 64).bfloat16()
    with pytest.raises(RuntimeError, match="up to 8 rows"):
        multiply_few_rows(torch.empty(9, 8, dtype=x.dtype), x, weight, None)
    with pytest.raises(RuntimeError, match="16-bit"):
        multiply_few_rows(torch.empty(1, 8), x[:1].float(), weight.float(), None)
