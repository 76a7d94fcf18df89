"""The linear that a PackedLinear was made of."""

from typing import Final

from .coded import CodedLinear
from .dequantized import DequantizedLinear
from .packed import Packable, PackedLinear
from .scaled_input import ScaledInputLinear
from .scheme import LinearMethod
from .side_by_side import SideBySideLinear
from .stored_float import StoredFloatLinear

METHODS: Final[tuple[type[Packable], ...]] = (
    StoredFloatLinear,
    CodedLinear,
    SideBySideLinear,
    ScaledInputLinear,
    DequantizedLinear,
)
BY_NAME: Final = {method.__name__: method for method in METHODS}


def restore(packed: PackedLinear) -> LinearMethod:
    return BY_NAME[packed.method].restored(packed, [restore(inner) for inner in packed.inner])
