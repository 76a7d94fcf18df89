"""MXFP4: each code and scale stands for the number that OCP's format says, and what cannot be is refused by name."""

import numpy as np
import pytest
import torch

from loraplex.quant.config.config import parse_quantization
from loraplex.quant.config.layouts import Mxfp4Layout
from loraplex.quant.formats.read import read_weight, tensor_specs
from loraplex.quant.formats.specification import Linear
from loraplex.quant.weights.weights import Float4Weight

LINEAR = Linear("experts.3.down_proj", 4, 64)


def test_every_code_and_scale() -> None:
    """A sign, two bits of exponent with bias 1, one bit of fraction; and powers of two from the least."""
    blocks = torch.arange(4 * 2 * 16).reshape(4, 2, 16).mul(37).remainder(256).to(torch.uint8)
    exponents = torch.tensor([[0, 1], [126, 127], [128, 200], [251, 252]], dtype=torch.uint8)
    codes = np.stack([blocks.numpy() & 15, blocks.numpy() >> 4], axis=-1).reshape(4, 64)
    expected = np.array([[float4(code) for code in row] for row in codes])
    scales = np.exp2(exponents.numpy().astype(np.float64) - 127).repeat(32, axis=1)
    assert len(np.unique(codes)) == 16
    assert (read(blocks, exponents).dequantized().double().numpy() == expected * scales).all()


def float4(code: int) -> float:
    exponent, fraction = code >> 1 & 3, code & 1
    size = fraction * 0.5 if exponent == 0 else (1 + fraction / 2) * 2.0 ** (exponent - 1)
    return -size if code & 8 else size


@pytest.mark.parametrize("exponent", [253, 254, 255])
def test_scales_beyond_float32_are_refused(exponent: int) -> None:
    exponents = torch.full((4, 2), 120, dtype=torch.uint8)
    exponents[2, 1] = exponent
    with pytest.raises(ValueError, match=rf"experts.3.down_proj.scales has 1 of 8 exponents above 252.*{exponent}"):
        read(torch.zeros(4, 2, 16, dtype=torch.uint8), exponents)


def test_what_its_tensors_must_be() -> None:
    specs = tensor_specs(Mxfp4Layout(), LINEAR, {"blocks", "scales"})
    assert specs["blocks"].misshaped((4, 2, 16)) is None
    assert specs["blocks"].misshaped((4, 32)) == "[4, 32] instead of [4, 2, 16]"
    assert specs["scales"].mistyped("F32", (4, 2)) == "F32 instead of U8 or F8_E8M0"
    with pytest.raises(ValueError, match="down_proj has 48 inputs, and mxfp4 has blocks of 32"):
        tensor_specs(Mxfp4Layout(), Linear("down_proj", 4, 48), {"blocks", "scales"})


def test_config_json_says_it() -> None:
    said = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    found = parse_quantization({"quantization_config": said})
    assert found is not None
    assert found.words == "mxfp4, fp4 in blocks of 32"
    assert found.layout_if_stored("model.layers.0.mlp.experts.0.down_proj") == Mxfp4Layout()
    assert found.layout_of("lm_head") is None


def read(blocks: torch.Tensor, exponents: torch.Tensor) -> Float4Weight:
    weight = read_weight(Mxfp4Layout(), LINEAR, {"blocks": blocks, "scales": exponents})
    assert isinstance(weight, Float4Weight)
    return weight
