"""AWQ's two forms of a random checkpoint, made once under benchmarks/.cache: as AutoAWQ writes it, float16, and as
`loraplex quantize` does, with the scales beside it by which linears divide their inputs.

The weights are rounded to nearest: how well they were chosen costs no time.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.folder import FOLDED_SCALES
from loraplex.engine.model.layer_inputs import place_of
from loraplex.quant.weights.rounding import IntegerGrid, round_to_integers

from .checkpoints import Dimensions, base_checkpoint

GROUP = 128
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Outputs of a word, from its lowest bits up."""


def awq_checkpoint(dimensions: Dimensions) -> Path:
    """Groups of 128 inputs with zero points, all else in float16."""
    return _made(dimensions, "awq", torch.float16)


def folded_awq_checkpoint(dimensions: Dimensions) -> Path:
    """The same in bfloat16, whose linears divide their inputs by scales of their own."""
    folder = _made(dimensions, "awq-folded", torch.bfloat16)
    if not (folder / FOLDED_SCALES).exists():
        (folder / FOLDED_SCALES).parent.mkdir(exist_ok=True)
        save_file(dict(_scales(ModelConfig.from_folder(folder))), folder / FOLDED_SCALES)
    return folder


def packed(weight: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A weight [out, in] as AutoAWQ's tensors of a linear."""
    rounded = round_to_integers(weight, IntegerGrid(bits=4, symmetric=False, scale_dtype=dtype), GROUP)
    return {
        "qweight": _words(rounded.values.T),
        "qzeros": _words(rounded.zeros.T),
        "scales": rounded.scales.T.to(dtype).contiguous(),
    }


def _words(values: torch.Tensor) -> torch.Tensor:
    """[n, out] uint8 below 16 -> [n, out / 8] int32"""
    in_order = values.reshape(len(values), -1, len(ORDER))[:, :, list(ORDER)]
    pairs = in_order[:, :, 0::2] | in_order[:, :, 1::2] << 4
    return pairs.contiguous().view(torch.int32).reshape(len(values), -1)


def _made(dimensions: Dimensions, form: str, dtype: torch.dtype) -> Path:
    source = base_checkpoint(dimensions)
    folder = source.with_name(f"{source.name}-{form}")
    if not (folder / "model.safetensors").exists():
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
        said = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
        config = json.loads((folder / "config.json").read_text())
        config |= {"torch_dtype": str(dtype).removeprefix("torch."), "quantization_config": said}
        (folder / "config.json").write_text(json.dumps(config))
        save_file(dict(_tensors(source, dtype)), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _tensors(source: Path, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            yield name, tensor.to(dtype)
            continue
        for suffix, part in packed(tensor, dtype).items():
            yield f"{name.removesuffix('weight')}{suffix}", part


def _scales(config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    for number, layer in enumerate(config.spec.layers):
        for group in layer.linear_groups():
            yield f"layers.{number}.{place_of(group)}", torch.full((group[0].inputs,), 2.0)
