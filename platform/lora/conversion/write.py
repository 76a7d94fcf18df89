"""The two files of a LoRA adapter, written module by module."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import FileIO
from typing import Any, Final

import numpy as np

from ..files.config_fields import MAX_RANK
from ..files.manifest import BaseSignature
from ..files.safetensors_header import ITEM_SIZES
from ..files.tensor_names import ModuleLocation
from ..files.values import LARGEST_WEIGHT
from .factors import Change, TooLarge, Unfit
from .source import every_linear

_METADATA: Final = {"__metadata__": {"format": "pt"}}
_LONGEST_OFFSET: Final = 1 << 50


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    shape: tuple[int, int]
    start: int
    end: int


class WeightsFile:
    """adapter_model.safetensors in float32, its header written last into room that was kept for it."""

    def __init__(self, file: FileIO, places: list[ModuleLocation], base: BaseSignature, largest: int) -> None:
        """`places` are all that may be written; `largest` is the most bytes that the file may have."""
        self._file, self._largest = file, largest
        self._entries: list[_Entry] = []
        self._room = len(_header([_longest(place, side, base) for place in places for side in "AB"]))
        self._file.seek(8 + self._room)

    def write(self, place: ModuleLocation, change: Change) -> None:
        """Raises TooLarge when the file would grow beyond `largest`, Unfit for what no weight can be."""
        for side, matrix in (("A", change.down), ("B", change.up)):
            if not np.abs(matrix).max() <= LARGEST_WEIGHT:
                raise Unfit(f"makes a LoRA with values above {LARGEST_WEIGHT:.0f}")
            start = self._entries[-1].end if self._entries else 0
            end = start + 4 * matrix.size
            if 8 + self._room + end > self._largest:
                raise TooLarge(f"does not fit: the LoRA adapter would have more than {self._largest:,} bytes")
            self._entries.append(_Entry(_name(place, side), (matrix.shape[0], matrix.shape[1]), start, end))
            _write_all(self._file, matrix.astype(np.float32).tobytes())

    def finish(self) -> None:
        header = _header(self._entries).ljust(self._room)
        self._file.seek(0)
        _write_all(self._file, len(header).to_bytes(8, "little") + header)


def whole_header(stored: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, int]:
    """The beginning of a file of tensors, each by name, dtype and shape, and how many bytes come after it."""
    entries, end = dict[str, Any](), 0
    for name, dtype, shape in stored:
        size = math.prod(shape) * ITEM_SIZES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(_METADATA | entries, separators=(",", ":")).encode()
    return len(header).to_bytes(8, "little") + header, end


def lora_config(ranks: Mapping[ModuleLocation, int], base_model: str, base: BaseSignature) -> bytes:
    """adapter_config.json for modules of these ranks, each with a scaling of 1."""
    usual = Counter(ranks.values()).most_common(1)[0][0]
    unusual = {place.path: rank for place, rank in sorted(ranks.items()) if rank != usual}
    kinds = {base.word_for(place.kind) for place in ranks}
    absent = [place.path for place in every_linear(base) if base.word_for(place.kind) in kinds and place not in ranks]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": usual,
        "lora_alpha": usual,
        "rank_pattern": unusual,
        "alpha_pattern": unusual,
        "target_modules": sorted(kinds),
        "exclude_modules": absent or None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
    }
    return json.dumps(config).encode()


def _header(entries: list[_Entry]) -> bytes:
    tensors = {
        entry.name: {"dtype": "F32", "shape": entry.shape, "data_offsets": [entry.start, entry.end]}
        for entry in entries
    }
    return json.dumps(_METADATA | tensors, separators=(",", ":")).encode()


def _longest(place: ModuleLocation, side: str, base: BaseSignature) -> _Entry:
    inputs, outputs = base.linears[place.kind]
    shape = (MAX_RANK, inputs) if side == "A" else (outputs, MAX_RANK)
    return _Entry(_name(place, side), shape, _LONGEST_OFFSET, _LONGEST_OFFSET)


def _name(place: ModuleLocation, side: str) -> str:
    return f"base_model.model.{place.path}.lora_{side}.weight"


def _write_all(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
