"""A checkpoint that AWQ folded, taken apart again as it is loaded.

AWQ multiplies a linear's inputs by scales in its weight, and divides what makes them: a norm, or the linear before. The
model computes the same, but an adapter that was trained on the unquantized model expects what the linears of that read,
and adds to what they gave. So norms and linears get their own size back, and the linear divides its input itself.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from loraplex.quant.weights.weights import IntegerWeight, Weight

from .config import ModelConfig
from .folder import FOLDED_SCALES
from .layer_inputs import LayerInput, inputs_of


class FoldedScales:
    """`layers.N.<input>` -> the unquantized model's input over the folded one's, [in]; empty for most checkpoints."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """ValueError for a file that is broken or not this model's."""
        path = folder / FOLDED_SCALES
        if config.folded_digest is not None:
            _require_file(path, config.folded_digest)
        self._scales = _read(path) if path.is_file() else {}
        self._read: dict[tuple[int, str], torch.Tensor] = {}
        """(layer, path of the first linear that reads it) -> scales of the input."""
        self._made: dict[tuple[int, str], torch.Tensor] = {}
        """(layer, path of what makes it) -> scales of what that gives."""
        for layer in range(config.num_layers if self._scales else 0):
            for at in inputs_of(config.spec, layer):
                if at.maker is not None:
                    self._take(path, layer, at, at.maker.path)

    def of_input(self, layer: int, linear: str) -> torch.Tensor | None:
        """[in], what the input of this linear and of those beside it is to be divided by."""
        return self._read.get((layer, linear))

    def of_maker(self, layer: int, module: str) -> torch.Tensor | None:
        """[out], what this norm or this linear's outputs are to be multiplied by."""
        return self._made.get((layer, module))

    def _take(self, path: Path, layer: int, at: LayerInput, maker: str) -> None:
        name, first = f"layers.{layer}.{at.place}", at.linears[0]
        self._verify(path, name, first.inputs)
        self._read[layer, first.path] = self._scales[name]
        self._made[layer, maker] = at.made_by(self._scales[name])

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
    raise ValueError("a checkpoint of FP8 or MXFP4 cannot have AWQ's folded scales; quantize the model anew")


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
