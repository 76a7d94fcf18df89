"""The independent readers and writers: transformers with compressed-tensors, and transformers' own reader of fp8.

They quantize activations where the config says so, which this engine does not; here the configs do not say so.
"""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from transformers.models.auto import AutoModelForCausalLM

from loraplex.quant.config.compressed_groups import parse_groups
from loraplex.quant.formats.read import read_weight, tensor_specs
from loraplex.quant.formats.specification import Linear
from tests.quant.made_checkpoints import CASES, groups, make_quantized, write_config
from tests.quant.test_formats_engine import IDS, error, load, logits

READ_THERE = ("packed4", "packed8", "int8", "float8", "float8-channels", "mixed", "fp8-blocks")
"""awq and gptq need other packages there; of compressed-tensors 0.20 transformers takes neither an activation order nor
packed zero points."""
TOLERANCE = 1e-3


@torch.inference_mode()
@pytest.mark.parametrize("name", READ_THERE)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case = deepcopy(CASES[name])
    case.config.pop("kv_cache_scheme", None)
    for scheme in case.config.get("config_groups", {}).values():
        scheme |= {"input_activations": None, "format": scheme["format"] or case.config["format"]}
    quantized, _ = make_quantized(tmp_path, case)
    write_config(quantized, dtype="float32")
    model = AutoModelForCausalLM.from_pretrained(quantized, dtype=torch.float32).eval()
    assert error(logits(quantized, load(quantized)), model(input_ids=IDS[None]).logits[0].float()) < TOLERANCE


WRITTEN_THERE: list[tuple[str, dict[str, object]]] = [
    ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 5}),
    ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 5, "symmetric": False}),
    ("pack-quantized", {"num_bits": 8, "strategy": "group", "group_size": 3, "symmetric": False}),
    ("pack-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
    ("pack-quantized", {"num_bits": 4, "strategy": "channel"}),
    ("pack-quantized", {"num_bits": 4, "strategy": "tensor"}),
    ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    ("int-quantized", {"num_bits": 8, "strategy": "tensor"}),
    ("int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
    ("naive-quantized", {"num_bits": 8, "strategy": "group", "group_size": 5}),
    ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    ("naive-quantized", {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [4, 5]}),
]


@pytest.mark.parametrize(("stored", "weights"), WRITTEN_THERE, ids=str)
def test_what_compressed_tensors_writes_is_read_as_it_reads_it(stored: str, weights: dict[str, object]) -> None:
    linear, args = Linear("x", 13, 15), QuantizationArgs(**({"type": "int"} | weights))
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=stored)
    compressor = BaseCompressor.get_value_from_registry(stored)
    tensors = compressor.compress(_quantizable(linear, args), scheme)
    parsed, _ = parse_groups(groups(stored, scheme.model_dump(mode="json")))
    layout = parsed.layout_of("model.layers.0.mlp.up_proj")
    assert layout is not None
    specs = tensor_specs(layout, linear, tensors.keys())
    assert tensors.keys() <= specs.keys()
    assert all(specs[suffix].misshaped(tuple(tensor.shape)) is None for suffix, tensor in tensors.items())
    theirs = compressor.decompress(tensors, scheme)["weight"]
    torch.testing.assert_close(read_weight(layout, linear, tensors).dequantized(), theirs.float(), rtol=1e-6, atol=1e-7)


def _quantizable(linear: Linear, args: QuantizationArgs) -> dict[str, torch.Tensor]:
    """A weight with scales of the shape that the scheme has, zero points where it has some."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(linear.out_features, linear.in_features, generator=generator)
    shapes = {
        "tensor": (1,),
        "channel": (linear.out_features, 1),
        "group": (linear.out_features, linear.in_features // (args.group_size or 1)),
        "block": (-(-linear.out_features // 4), -(-linear.in_features // 5)),
    }
    most = 448 if args.type == "float" else (1 << (args.num_bits - 1)) - 1
    scale = torch.empty(shapes[str(args.strategy)]).uniform_(2.5, 3.5, generator=generator) / most
    tensors = {"weight": weight, "weight_scale": scale}
    if not args.symmetric:
        tensors["weight_zero_point"] = torch.randint(-4, 5, scale.shape, generator=generator).to(torch.int8)
    return tensors
