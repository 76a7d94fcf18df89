import torch

from loraplex.quant.weights.weights import Float8Weight, IntegerWeight


def test_integers_by_runs_and_by_activation_order() -> None:
    values = torch.tensor([[0, 15, 8, 7]], dtype=torch.uint8)
    scales, zeros = torch.tensor([[0.5, 2.0]]), torch.tensor([[8, 7]], dtype=torch.uint8)
    weight = IntegerWeight(bits=4, values=values, scales=scales, zeros=zeros)
    assert weight.shape == (1, 4)
    assert weight.dequantized().tolist() == [[-4.0, 3.5, 2.0, 0.0]]
    order = torch.tensor([1, 0, 0, 1], dtype=torch.int32)
    reordered = IntegerWeight(bits=4, values=values, scales=scales, zeros=zeros, group_of=order)
    assert reordered.dequantized().tolist() == [[-14.0, 3.5, 0.0, 0.0]]


def test_float8_by_blocks_that_do_not_divide_the_matrix() -> None:
    values = torch.ones(3, 5).to(torch.float8_e4m3fn)
    weight = Float8Weight(values=values, scales=torch.tensor([[1.0, 2.0], [3.0, 4.0]]), block=(2, 4))
    assert weight.dequantized().tolist() == [[1, 1, 1, 1, 2], [1, 1, 1, 1, 2], [3, 3, 3, 3, 4]]
