"""What the tensors of a checkpoint must be, checked before any is read. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FLOATS: Final = ("F32", "F16", "BF16")
"""Names of dtypes as safetensors has them."""


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear of the model, W [out_features, in_features]; `name` is the prefix of its tensors."""

    name: str
    out_features: int
    in_features: int

    def groups(self, group_size: int | None) -> int:
        """Groups of inputs. ValueError where they do not come out even."""
        size = self.in_features if group_size is None else group_size
        if self.in_features % size:
            raise ValueError(
                f"{self.name} has {self.in_features} inputs, which groups of {size} (group_size in config.json) "
                "do not divide"
            )
        return self.in_features // size

    def words(self, features: int, bits: int) -> int:
        """Words of 32 bits that `features` values fill. ValueError where they do not come out even."""
        each = 32 // bits
        if features % each:
            raise ValueError(
                f"{self.name} has {features} values to pack into words of {each}, which do not divide them"
            )
        return features // each


@dataclass(frozen=True, slots=True)
class TensorSpec:
    forms: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]
    """(dtypes, shape) of which one must fit; empty: anything, as it is not read."""
    required: bool = True

    def misshaped(self, shape: tuple[int, ...]) -> str | None:
        """What it is instead of what was expected; None if it fits."""
        shapes = list(dict.fromkeys(shape for _, shape in self.forms))
        if not shapes or shape in shapes:
            return None
        return f"{list(shape)} instead of {' or '.join(str(list(expected)) for expected in shapes)}"

    def mistyped(self, dtype: str, shape: tuple[int, ...]) -> str | None:
        """The same for the dtype of one that has a right shape."""
        dtypes = [dtype for dtypes, expected in self.forms if expected == shape for dtype in dtypes]
        return f"{dtype} instead of {' or '.join(dict.fromkeys(dtypes))}" if dtypes and dtype not in dtypes else None


def tensor(dtypes: Sequence[str], *shapes: tuple[int, ...], required: bool = True) -> TensorSpec:
    return TensorSpec(tuple((tuple(dtypes), shape) for shape in shapes), required)


IGNORED: Final = TensorSpec((), required=False)
"""May be there and says nothing about the weight."""
BESIDE: Final = (
    *(f"{what}_{value}" for what in ("input", "output") for value in ("scale", "zero_point")),
    *("activation_scale", "k_scale", "v_scale"),
)
"""Such tensors of a linear: of its activations, and of the cache that its results go to."""
