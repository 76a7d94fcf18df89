"""A checkpoint that AWQ folded, taken apart again as it is loaded.

AWQ multiplies a linear's inputs by scales in its weight, and divides what makes them: a norm, or the linear before. The
model computes the same, but an adapter that was trained on the unquantized model expects what the linears of that read,
and adds to what they gave. So norms and linears get their own size back, and the linear divides its input itself.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open

from loraplex.quant.weights.weights import IntegerWeight, Weight

from .config import ModelConfig
from .folder import FOLDED_SCALES
from .layer_inputs import INPUTS, LINEARS, NORMS, linears_of, made_by

READ_BY: Final = {linears_of(place)[0].rpartition(".")[2]: place for place in INPUTS}
"""The first linear that reads an input -> the input's name in the file."""
MADE_BY_NORM: Final = {norm: place for place, norm in NORMS.items()}
MADE_BY_LINEAR: Final = {linear.rpartition(".")[2]: place for place, linear in LINEARS.items()}


class FoldedScales:
    """`layers.N.<input>` -> the unquantized model's input over the folded one's, [in]; empty for most checkpoints."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """ValueError for a file that is broken or not this model's."""
        self._config = config
        path = folder / FOLDED_SCALES
        if config.folded_digest is not None:
            _require_file(path, config.folded_digest)
        self._scales = _read(path) if path.is_file() else {}
        for number, layer in enumerate(config.spec.layers if self._scales else ()):
            for group in layer.linear_groups():
                if group[0].kind in READ_BY:
                    self._verify(path, f"layers.{number}.{READ_BY[group[0].kind]}", group[0].inputs)

    def of_input(self, layer: int, kinds: Sequence[str]) -> torch.Tensor | None:
        """[in], what the input of these linears is to be divided by."""
        return self._scales.get(f"layers.{layer}.{READ_BY.get(kinds[0])}")

    def of_norm(self, layer: int, norm: str) -> torch.Tensor | None:
        return self._scales.get(f"layers.{layer}.{MADE_BY_NORM.get(norm)}")

    def of_output(self, layer: int, kind: str) -> torch.Tensor | None:
        """[out], what this linear's outputs are to be multiplied by."""
        place = MADE_BY_LINEAR.get(kind)
        scales = self._scales.get(f"layers.{layer}.{place}")
        return None if place is None or scales is None else made_by(place, scales, self._config)

    def _verify(self, path: Path, name: str, inputs: int) -> None:
        scales = self._scales.get(name)
        found = "missing" if scales is None else f"{list(scales.shape)}"
        if scales is None or tuple(scales.shape) != (inputs,):
            raise ValueError(f"{path}: {name} is {found}, expected [{inputs}]; quantize the model anew")
        if not bool((scales.isfinite() & (scales > 0)).all()):
            raise ValueError(f"{path}: {name} holds scales that are not above zero; quantize the model anew")


def scaled_rows(weight: Weight, scales: torch.Tensor) -> Weight:
    """A weight [out, in] with outputs `scales` [out] times as large. ValueError for one that AWQ cannot have left."""
    if isinstance(weight, torch.Tensor):
        return (weight.float() * scales[:, None]).to(weight.dtype)
    if isinstance(weight, IntegerWeight):
        return replace(weight, scales=weight.scales * scales[:, None])
    raise ValueError("a checkpoint in FP8 cannot have AWQ's folded scales; quantize the model anew")


def _require_file(path: Path, digest: str) -> None:
    if not path.is_file():
        raise ValueError(
            f"{path} is missing: with it AWQ's scales are taken out again, and without it adapters answer wrongly. "
            "Copy it from where the checkpoint was written, or quantize the model anew"
        )
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise ValueError(f"{path} is not the file that was written with this checkpoint; quantize the model anew")


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a valid safetensors file: {error}") from error
