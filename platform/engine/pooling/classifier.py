"""Classifier: from vectors to a score for each class, by tensors of the base or of an adapter. No torch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ..model.description.spec import SCORE, Activation, ClassifierSpec, NormSpec
from .vectors import Hidden

Tensors = Mapping[str, npt.NDArray[np.float32]]
"""By name in the whole model."""
ERF: Final = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429, 0.3275911)
"""Abramowitz and Stegun 7.1.26: within 1.5e-7."""


def _gelu(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    *factors, p = ERF
    size = np.abs(x.astype(np.float64)) / math.sqrt(2)
    t = 1 / (1 + p * size)
    erf = np.copysign(1 - t * np.polyval(factors[::-1], t) * np.exp(-size * size), x)
    result: npt.NDArray[np.float32] = (x * (1 + erf) / 2).astype(np.float32)
    return result


ACTIVATIONS: Final[Mapping[Activation, Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "silu": lambda x: x * (np.float32(0.5) + np.float32(0.5) * np.tanh(x / 2)),
    "gelu": _gelu,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + np.float32(0.044715) * x**3))) / 2,
}


@dataclass(frozen=True, slots=True)
class Classifier:
    spec: ClassifierSpec = SCORE
    base: Tensors = field(default_factory=dict)
    """What the base has of it; the head itself only if it was made to classify."""

    @property
    def needs(self) -> frozenset[str]:
        """Names of all its tensors."""
        return frozenset(self.spec.tensors())

    def works_with(self, own: Tensors) -> bool:
        """Whether there is all that it takes. `own`: of an adapter, in the place of the base's."""
        return self.needs <= self.base.keys() | own.keys()

    def num_classes(self, own: Tensors) -> int:
        """Where there is all that it takes."""
        last = f"{self.spec.linears[-1].path}.weight"
        return len(own[last] if last in own else self.base[last])

    def scores(self, vectors: Hidden, own: Tensors) -> npt.NDArray[np.float64]:
        """Vectors [..., C] -> [..., classes], without an activation."""
        tensors, x = {**self.base, **own}, vectors.astype(np.float32)
        for linear in self.spec.linears:
            x = x @ tensors[f"{linear.path}.weight"].T
            if linear.has_bias:
                x = x + tensors[f"{linear.path}.bias"]
            if linear is not self.spec.linears[-1]:
                x = ACTIVATIONS[self.spec.activation](x)
                x = x if self.spec.norm is None else _normed(x, self.spec.norm, tensors)
        return x.astype(np.float64)


def _normed(x: npt.NDArray[np.float32], norm: NormSpec, tensors: Tensors) -> npt.NDArray[np.float32]:
    centred = x - x.mean(axis=-1, keepdims=True)
    variances = (centred * centred).mean(axis=-1, keepdims=True)
    scaled: npt.NDArray[np.float32] = (
        centred / np.sqrt(variances + np.float32(norm.eps)) * tensors[f"{norm.path}.weight"]
    )
    return scaled if not norm.has_bias else scaled + tensors[f"{norm.path}.bias"]
