"""Triton's interpreter as tests need it: casts as a device does them, and new memory that is NaN.

Its own casts cut bfloat16 off and lose carries in float8.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

# As no device assertion is looked at, what sums of integers would be in 64 bits is computed for nothing.
assert not interpreter.interpreter_builder.options.debug
interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
_number_type = cache(interpreter._get_np_dtype)


def numpy_type(kind: Any) -> Any:
    """In place of interpreter._get_np_dtype, which makes a table of all types anew for each operation."""
    kind = kind.element_ty if isinstance(kind, tl.block_type) else kind
    return np.dtype(np.uint64) if isinstance(kind, tl.pointer_type) else _number_type(kind)


interpreter._get_np_dtype = numpy_type
TARGETS = {tl.bfloat16: (torch.bfloat16, np.uint16), tl.float8e4nv: (torch.float8_e4m3fn, np.uint8)}
_convert_float = interpreter._convert_float


@pytest.fixture(autouse=True)
def rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_convert_float", round_to_nearest)


@pytest.fixture(autouse=True)
def one_patch_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_modules_once(monkeypatch)


def patch_modules_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module is patched once and stays so: at each launch, and each call of a device function, that would cost more
    than a small kernel."""
    patch_lang, patched = interpreter._patch_lang, set[int]()
    staying = interpreter._LangPatchScope()  # of no changes, which restores nothing

    def patch_once(function: Any) -> Any:
        module = id(function.__globals__)
        if module not in patched:
            patched.add(module)
            patch_lang(function)
        return staying

    monkeypatch.setattr(interpreter, "_patch_lang", patch_once)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What launchers allocate is NaN, and integers are huge, until a kernel writes it: -1 would be "none" to many."""
    empty = torch.empty

    def poisoned(*size: int, **named: object) -> torch.Tensor:
        result = empty(*size, **named)  # type: ignore[call-overload]
        result.view(torch.uint8).fill_(0xFF if result.is_floating_point() else 0x7F)
        return result

    monkeypatch.setattr(torch, "empty", poisoned)


def round_to_nearest(values: Any, source: Any, target: Any, mode: Any) -> Any:
    """In place of interpreter._convert_float: float32 to TARGETS is torch's cast, all else is exact as it is."""
    if source != tl.float32 or target not in TARGETS:
        return _convert_float(values, source, target, mode)
    dtype, bits = TARGETS[target]
    rounded = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
    return rounded.view(torch.uint8).numpy().view(bits).reshape(values.shape)
