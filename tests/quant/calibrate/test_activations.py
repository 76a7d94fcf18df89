import torch

from loraplex.quant.calibrate.activations import SAMPLED_ROWS, InputStatistics

from .inputs import outlier_case, statistics


def test_statistics_are_those_of_all_rows_at_once() -> None:
    _, x = outlier_case()
    seen = statistics(x, with_hessian=True)
    assert torch.allclose(seen.magnitudes, x.abs().mean(0))
    expected = 2 * (x.double().T @ x.double()) / len(x)
    assert torch.allclose(seen.hessian.double(), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    assert torch.equal(seen.rows, x)


def test_rows_are_sampled_evenly_however_they_come() -> None:
    x = torch.arange(3 * SAMPLED_ROWS + 7, dtype=torch.float32)[:, None]
    for sizes in (1000, 1, 7):
        seen = InputStatistics(1, len(x))
        for part in x.split(sizes):
            seen.add(part)
        assert seen.rows[:, 0].tolist() == list(range(0, len(x), 4))
