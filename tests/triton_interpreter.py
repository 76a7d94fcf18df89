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
from triton.language import core
from triton.language.semantic import TritonSemantic
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
_begin_block = tl.block_type.__init__
_blocks: dict[tuple[object, ...], tl.block_type] = {}


def block_type(cls: type[tl.block_type], element: Any, shape: Any) -> tl.block_type:
    """In place of tl.block_type.__new__: the type of each block is made once, and not for each result anew."""
    sizes = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
    key = type(element), element.name, getattr(element, "const", None), getattr(element, "address_space", None), sizes
    if key not in _blocks:
        made = _blocks[key] = object.__new__(cls)
        _begin_block(made, element, shape)
        made.sizes = sizes
        made.shown = tl.tuple([tl.constexpr(size) for size in made.shape]), tl.constexpr(made.numel)
    return _blocks[key]


def begin_tensor(self: tl.tensor, handle: Any, kind: Any) -> None:
    """In place of tl.tensor.__init__."""
    self.handle, self.type, self.dtype = handle, kind, kind.scalar
    self.shape, self.numel = kind.shown if kind.is_block() else SCALAR


def broadcast(self: TritonSemantic[Any], one: tl.tensor, other: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """In place of TritonSemantic.broadcast_impl_value, which compares number by number: mostly shapes are the same."""
    blocks = one.type.is_block() and other.type.is_block()
    alike = one.type.sizes == other.type.sizes if blocks else not (one.type.is_block() or other.type.is_block())
    return (one, other) if alike else _broadcast(self, one, other)


def unwrapped(given: Any) -> Any:
    """In place of core._unwrap_if_constexpr: most of what it is asked about is no container."""
    return given if type(given) in PLAIN else _unwrap(given)


_broadcast, TritonSemantic.broadcast_impl_value = TritonSemantic.broadcast_impl_value, broadcast
_unwrap, core._unwrap_if_constexpr = core._unwrap_if_constexpr, unwrapped
PLAIN = frozenset({int, bool, float, str, type(None), tl.tensor, tl.dtype, tl.block_type, tl.pointer_type})
SCALAR = tl.tuple([]), tl.constexpr(1)
tl.block_type.__new__ = staticmethod(block_type)
tl.block_type.__init__ = lambda self, element, shape: None
tl.tensor.__init__ = begin_tensor
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
        result.view(-1).view(torch.uint8).fill_(0xFF if result.is_floating_point() else 0x7F)
        return result

    monkeypatch.setattr(torch, "empty", poisoned)


def last_program_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of a launch run from the last to the first, until the test ends."""
    builder = interpreter.interpreter_builder
    set_place = builder.set_grid_idx

    def set_from_the_end(*place: int) -> None:
        set_place(*(size - 1 - number for size, number in zip(builder.grid_dim, place, strict=True)))

    monkeypatch.setattr(builder, "set_grid_idx", set_from_the_end)


def round_to_nearest(values: Any, source: Any, target: Any, mode: Any) -> Any:
    """In place of interpreter._convert_float: float32 to TARGETS is torch's cast, all else is exact as it is."""
    if source != tl.float32 or target not in TARGETS:
        return _convert_float(values, source, target, mode)
    dtype, bits = TARGETS[target]
    rounded = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
    return rounded.view(torch.uint8).numpy().view(bits).reshape(values.shape)
