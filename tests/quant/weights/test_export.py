import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationConfig
from hypothesis import given
from hypothesis import strategies as st

from loraplex.quant.weights.export import exported_tensors, packed, quantization_config
from loraplex.quant.weights.recipe import SCHEMES, choose_recipe


def test_words_by_hand() -> None:
    values = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 15]], dtype=torch.uint8)
    first = torch.tensor([0x87654321], dtype=torch.int64).to(torch.int32).item()
    assert packed(values, 4).tolist() == [[first, 15]]
    assert packed(torch.tensor([[1, 2, 3, 127, 255]], dtype=torch.uint8), 8).tolist() == [[0x7F030201, 255]]


@given(st.integers(1, 4), st.integers(1, 40), st.sampled_from((4, 8)), st.integers(0, 99))
def test_words_are_those_of_compressed_tensors(rows: int, columns: int, bits: int, seed: int) -> None:
    values = torch.randint(0, 2**bits, (rows, columns), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    signed = (values.int() - 2 ** (bits - 1)).to(torch.int8)
    assert torch.equal(packed(values, bits), pack_to_int32(signed, bits))
    assert torch.equal(packed(values.T, bits).T, pack_to_int32(signed, bits, packed_dim=0))


def test_the_zero_points_of_a_symmetric_checkpoint_are_not_written() -> None:
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    names = {}
    for symmetric in (True, False):
        recipe = choose_recipe("awq", torch.bfloat16, group_size=16, symmetric=symmetric)
        tensors = exported_tensors("mlp.up_proj", recipe.nearest(weight), recipe)
        names[symmetric] = set(tensors)
        assert tensors["mlp.up_proj.weight_scale"].dtype == torch.bfloat16
    assert names[False] - names[True] == {"mlp.up_proj.weight_zero_point"}


def test_the_configuration_is_one_that_compressed_tensors_knows() -> None:
    for scheme in SCHEMES:
        known = QuantizationConfig.model_validate(quantization_config(choose_recipe(scheme, torch.bfloat16)))
        weights = known.config_groups["group_0"].weights
        assert (weights.num_bits, weights.type) == (
            {"fp8": 8, "int8": 8}.get(scheme, 4),
            "float" if scheme == "fp8" else "int",
        )
        assert weights.group_size == {"awq": 128, "gptq": 128}.get(scheme)
        assert weights.symmetric == (scheme != "awq")
        assert known.ignore == ["lm_head"]
