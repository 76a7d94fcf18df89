"""Before the CUDA benchmark shows a speed it checks the product; without a device it says so."""

import pytest
import torch

from benchmarks import quant_cuda
from benchmarks.report import show
from loraplex.quant.torch_linear import TorchLinear


def linear(weight: torch.Tensor) -> TorchLinear:
    method = TorchLinear(weight.shape[1], (weight.shape[0],), torch.bfloat16)
    method.load(0, weight, None)
    method.finish()
    return method


def test_a_wrong_product_stops_it() -> None:
    weight = torch.randn(24, 32)
    quant_cuda.check(linear(weight), weight, quant_cuda.TOLERANCE)
    wrong = weight.clone()
    wrong[7, 3] += 4
    with pytest.raises(RuntimeError, match=r"1 rows: off by .* no speed is shown"):
        quant_cuda.check(linear(wrong), weight, quant_cuda.TOLERANCE)
    with pytest.raises(RuntimeError, match="no speed is shown"):
        quant_cuda.check(linear(weight * float("nan")), weight, quant_cuda.TOLERANCE)


def test_without_a_device_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name, figures in quant_cuda.figures().items():
        rows = quant_cuda.rows_of(figures, 1)
        assert {row.value for row in rows} == {row.met for row in rows} == {None}
        show(name, rows)
    assert capsys.readouterr().out.count("not measured") == 1 + 4 * 5 + 4 * 2
