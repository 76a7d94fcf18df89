"""Casts of triton's interpreter as a device does them: its own cut bfloat16 off and lose carries in float8."""

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

TARGETS = {tl.bfloat16: (torch.bfloat16, np.uint16), tl.float8e4nv: (torch.float8_e4m3fn, np.uint8)}
_convert_float = interpreter._convert_float


def round_to_nearest(values: Any, source: Any, target: Any, mode: Any) -> Any:
    """In place of interpreter._convert_float: float32 to TARGETS is torch's cast, all else is exact as it is."""
    if source != tl.float32 or target not in TARGETS:
        return _convert_float(values, source, target, mode)
    dtype, bits = TARGETS[target]
    rounded = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
    return rounded.view(torch.uint8).numpy().view(bits).reshape(values.shape)
