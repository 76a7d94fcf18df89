"""Dense: linears behind the pooling, which sentence-transformers calls so. No torch where none is read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..model.config import read_json
from ..model.description.spec import Activation
from .classifier import ACTIVATIONS
from .vectors import Hidden

KINDS: Final[dict[str, Activation | None]] = {
    "Identity": None,
    "Tanh": "tanh",
    "ReLU": "relu",
    "SiLU": "silu",
    "GELU": "gelu",
}
"""By the last name of `activation_function`."""
WEIGHTS: Final = "model.safetensors"


@dataclass(frozen=True, slots=True)
class DenseSpec:
    folder: Path
    inputs: int
    outputs: int
    has_bias: bool
    activation: Activation | None


@dataclass(frozen=True, slots=True)
class Dense:
    weight: npt.NDArray[np.float32]
    """[out, in]"""
    bias: npt.NDArray[np.float32] | None
    activation: Activation | None

    def apply(self, vectors: Hidden) -> Hidden:
        """[..., in] -> [..., out]"""
        x = vectors.astype(np.float32) @ self.weight.T
        x = x if self.bias is None else x + self.bias
        return x if self.activation is None else ACTIVATIONS[self.activation](x)


def read_dense_spec(folder: Path) -> DenseSpec:
    """Of one module. ValueError for what is not supported."""
    said, where = read_json(folder / "config.json"), f"config.json of {folder.name}"
    kind = str(said.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if kind not in KINDS:
        raise ValueError(f"activation_function {kind} in {where} is not supported; supported: {', '.join(KINDS)}")
    odd = [
        name
        for name in ("module_input_name", "module_output_name")
        if said.get(name) not in (None, "sentence_embedding")
    ]
    odd += ["use_residual"] if said.get("use_residual") else []
    if odd:
        raise ValueError(f"{odd[0]} in {where} is not supported: a Dense module reads and writes the embedding")
    inputs, outputs = (_size(said, name, where) for name in ("in_features", "out_features"))
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder.name} has no {WEIGHTS}; only safetensors weights are loaded, never pickles")
    return DenseSpec(folder, inputs, outputs, said.get("bias") is not False, KINDS[kind])


def _size(said: dict[str, Any], name: str, where: str) -> int:
    size = said.get(name)
    if type(size) is not int or size < 1:
        raise ValueError(f"{where} must have {name} as a positive integer")
    return size


def read_dense(specs: Sequence[DenseSpec]) -> tuple[Dense, ...]:
    """ValueError for tensors that do not fit."""
    return tuple(map(_read, specs))


def _read(spec: DenseSpec) -> Dense:
    from safetensors.torch import load_file  # of numpy's kinds it would know no bfloat16

    try:
        stored: dict[str, Any] = load_file(spec.folder / WEIGHTS)
    except Exception as error:  # the library raises errors of its own kind
        raise ValueError(f"{spec.folder / WEIGHTS} cannot be read: {error}") from None
    shapes = {"linear.weight": (spec.outputs, spec.inputs)} | (
        {"linear.bias": (spec.outputs,)} if spec.has_bias else {}
    )
    found = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    if found != shapes:
        raise ValueError(f"{WEIGHTS} of {spec.folder.name} must have {shapes}, and has {found}")
    arrays = {name: tensor.float().numpy() for name, tensor in stored.items()}
    if not all(math.isfinite(float(np.abs(array).max())) for array in arrays.values()):
        raise ValueError(f"{WEIGHTS} of {spec.folder.name} has values that are no finite numbers")
    return Dense(arrays["linear.weight"], arrays.get("linear.bias"), spec.activation)
