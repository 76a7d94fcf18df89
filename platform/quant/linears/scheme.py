"""LinearMethod: the one interface of every way to store a weight. One scheme per file, one instance per linear group.

Life: `create(shapes)` -> `load(part, weight)` for each part -> `finish()` packs once -> `apply(x)` every step.
"""

from typing import Any, Protocol, runtime_checkable

import torch

Float8Rows = tuple[torch.Tensor, torch.Tensor]
"""An activation in float8_e4m3fn [T, in] and a scale for each token [T, 1] float32."""


class LinearMethod(Protocol):
    """A linear of one or more parts fused along the output (q, k, v or gate, up)."""

    out_features: tuple[int, ...]
    """Rows of each part, in order."""
    in_features: int

    def load(self, part: int, weight: Any, bias: torch.Tensor | None) -> None:
        """Take part `part`: a Weight [out, in] of the form the method was created for, of floats a tensor as in the
        checkpoint; bias [out] or None."""

    def finish(self) -> None:
        """Pack for this machine and drop the unpacked copy. Called once, after every part is loaded."""

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, in] in the compute dtype -> [T, sum(out_features)] in the compute dtype, bias added."""

    def columns(self, first: int, last: int) -> torch.Tensor:
        """[last - first, sum(out_features)] float32: what these inputs count for, exactly as stored, without the bias.

        For what an adapter says relative to the weights; not fast. `first` is even.
        """

    def bias(self) -> torch.Tensor:
        """[sum(out_features)] float32, where the weight is; zeros where there is none."""

    def weight_bytes(self) -> int:
        """Bytes held after finish()."""


@runtime_checkable
class Float8Reader(LinearMethod, Protocol):
    """A linear that multiplies float8. Whoever makes its inputs may cast them on the way."""

    input_scale: float | None
    """As of Float8Inputs."""

    def apply_cast(self, x: Float8Rows) -> torch.Tensor:
        """The same as `apply`, of what it would cast x to."""
