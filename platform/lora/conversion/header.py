"""read_tensors: the header of a safetensors file as `read_header` reads it, but a tensor may be empty.

AdaLoRA saves a module of which it has dropped every rank as three tensors without a value.
"""

import os
from io import FileIO
from typing import Any

from ..manifest import TensorInfo
from ..report import Report
from ..safetensors_header import SAVE_REMEDY, _layout_problems, _read_entries, _read_tensors


def read_tensors(file: FileIO, report: Report) -> tuple[TensorInfo, ...]:
    """The tensors of an open file; each thing wrong is a failure in `report`."""
    try:
        entries, data_start = _read_entries(file, size := os.fstat(file.fileno()).st_size)
    except ValueError as error:
        report.fail("header", f"adapter_model.safetensors cannot be read: {error}", SAVE_REMEDY)
        return ()
    empty = {name: entry for name, entry in entries.items() if _is_empty(entry)}
    tensors, problems = _read_tensors({name: entry for name, entry in entries.items() if name not in empty}, data_start)
    problems = problems or _layout_problems(tensors, data_start, size)
    report.fail_all("header", problems, SAVE_REMEDY)
    if problems:
        return ()
    return tensors + tuple(TensorInfo(name, "F32", tuple(entry["shape"]), 0, 0) for name, entry in empty.items())


def _is_empty(entry: Any) -> bool:
    match entry:
        case {"dtype": "F32" | "F16" | "BF16", "shape": [int(), int()] as shape, "data_offsets": [start, end]}:
            return start == end and 0 in shape and min(shape) >= 0
        case _:
            return False
