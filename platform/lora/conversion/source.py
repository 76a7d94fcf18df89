"""The tensors of an adapter that is being converted, by the linear of the base that they change."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import FileIO
from typing import Final

import numpy as np

from ..files.config_file import LoraSettings
from ..files.manifest import BaseSignature, TensorInfo
from ..files.pattern_keys import refuse_misread
from ..files.report import Report, enumerate_some, quote
from ..files.tensor_names import NO_HOME, ModuleLocation, every_place, find_module, reached
from ..files.values import LARGEST_WEIGHT, read_bits, scan_tensor, to_floats
from .factors import Matrix, TooLarge, Unfit

Shapes = dict[str, tuple[int, ...]]
"""By name of the part."""

MAX_VALUES: Final = 1 << 25
"""Of one tensor: as many are in memory at a time, at 8 bytes."""

NOT_OF_LINEAR: Final = "not tensors of a linear of the base's layers"
_SHARED: Final = re.compile(r"base_model\.(vera_[AB])")


@dataclass(slots=True)
class Tensors:
    """What is in the file, by name of the part: of each module, and of the adapter as a whole."""

    modules: dict[ModuleLocation, dict[str, TensorInfo]] = field(default_factory=dict)
    shared: dict[str, TensorInfo] = field(default_factory=dict)


def sort_tensors(
    tensors: tuple[TensorInfo, ...], parts: frozenset[str], base: BaseSignature, report: Report
) -> Tensors:
    """Every tensor finds its place, and is one of `parts`, or is a failure in `report`."""
    result = Tensors()
    strangers: dict[str, list[str]] = {}
    for tensor in tensors:
        shared, found = _SHARED.fullmatch(tensor.name), _find_linear(tensor.name, parts, base)
        if shared and shared[1] in parts:
            result.shared[shared[1]] = tensor
        elif isinstance(found, str):
            strangers.setdefault(found, []).append(quote(tensor.name))
        elif found[1] in result.modules.setdefault(found[0], {}):
            strangers.setdefault(f"{found[0]} has two of them", []).append(quote(tensor.name))
        else:
            result.modules[found[0]][found[1]] = tensor
    for reason, names in strangers.items():
        report.fail(
            "modules",
            f"{enumerate_some(names)}: {reason}",
            "some tensors would be ignored, which would change the answers",
        )
    return result


def _find_linear(name: str, parts: frozenset[str], base: BaseSignature) -> tuple[ModuleLocation, str] | str:
    """Where the tensor belongs, and which part it is there; or in words why nowhere."""
    found = find_module(name, base)
    if isinstance(found, str):
        return NOT_OF_LINEAR if found == NO_HOME else found
    place, part = found
    if base.modules[place.kind].role != "linear":
        return NOT_OF_LINEAR
    if part in ("hada_t1", "hada_t2", "lokr_t2"):
        return "they are for convolutions, which the base does not have"
    return found if part in parts else "not what this kind of adapter consists of"


def compare_targets(present: set[ModuleLocation], settings: LoraSettings, base: BaseSignature, report: Report) -> None:
    """PEFT would leave a targeted linear without tensors at its first, perhaps random, values."""
    linears = every_linear(base)
    refuse_misread(settings, [place.path for place in linears], report)
    targeted = {place for place in linears if settings.targets(place, is_linear=True)}
    for sentence, places, remedy in (
        (
            "target_modules names modules without tensors",
            reached(targeted, present) - present,
            "save the whole adapter again",
        ),
        ("target_modules does not name modules with tensors", present - targeted, "add them to target_modules"),
    ):
        if places:
            message = f"{sentence}: {enumerate_some([str(place) for place in sorted(places)])}"
            report.fail("targets", message, remedy)


def every_linear(base: BaseSignature) -> list[ModuleLocation]:
    """Layer by layer."""
    return sorted([place for place in every_place(base) if base.modules[place.kind].role == "linear"])


@dataclass(slots=True)
class Module:
    """One linear's tensors, read one by one. The methods raise Unfit, TooLarge."""

    file: FileIO
    inputs: int
    outputs: int
    rank: int
    """What adapter_config.json says."""
    scaling: float
    """alpha / rank by adapter_config.json."""
    parts: dict[str, TensorInfo]
    widest: int
    """Features of the base's widest linear."""

    def shape(self, part: str) -> tuple[int, ...]:
        if part not in self.parts:
            raise Unfit(f"has no {part}")
        return self.parts[part].shape

    def matrix_shape(self, part: str) -> tuple[int, int]:
        shape = self.shape(part)
        if len(shape) != 2:
            raise Unfit(f"has {part} of shape {list(shape)}, which is no matrix")
        return shape[0], shape[1]

    def check_shapes(self, shapes: Shapes) -> None:
        """Whether it has these parts and no others, by the header alone."""
        for part, shape in shapes.items():
            if self.shape(part) != shape:
                raise Unfit(f"has {part} of shape {list(self.shape(part))} instead of {list(shape)}")
            if math.prod(shape) > MAX_VALUES:
                raise TooLarge(f"has {part} of shape {list(shape)}; at most {MAX_VALUES:,} values are read")
        unused = sorted(self.parts.keys() - shapes.keys())
        if unused:
            raise Unfit(f"has {', '.join(unused)} beside {', '.join(sorted(shapes))}")

    def read(self, part: str) -> Matrix:
        """The tensor as float64."""
        tensor = self.parts[part]
        return to_floats(read_bits(self.file, tensor), tensor.dtype).astype(np.float64)


class Scan:
    """Values judged where they lie, each tensor once, in bounded memory."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._largest: dict[str, float] = {}

    def has_zeros(self, tensors: Iterable[TensorInfo]) -> bool:
        """Whether one of them is zero throughout. Unfit names a tensor that holds NaN, infinity or what no weight can
        be."""
        return 0.0 in [self._largest_of(tensor) for tensor in tensors]

    def _largest_of(self, tensor: TensorInfo) -> float:
        if tensor.name not in self._largest:
            found = scan_tensor(self._file, tensor, lambda data: None)
            if not found.usable:
                raise Unfit(f"has some values are NaN, infinite or above {LARGEST_WEIGHT:.0f} in {quote(tensor.name)}")
            self._largest[tensor.name] = found.largest
        return self._largest[tensor.name]
