"""Launches without a search: what triton compiled for some arguments is launched at once when arguments of that kind
come again, by the compiled kernel's own `[grid](...)`.

Triton binds, describes and looks up 20 to 40 arguments at every launch. Here one key stands for all of that. It is
finer than triton's own: equal keys have one kernel. Whatever is not plain takes triton's way, `JITFunction.run`, and so
does every launch of a release that is not among RELEASES.
"""

from contextlib import suppress
from typing import Any, Final, NamedTuple

import torch
import triton
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

RELEASES: Final = ("3.6.", "3.7.", "3.8.", "3.9.")
"""Of triton, whose compiled kernels take all parameters in their order, compile-time ones among them."""
ALIGNMENT: Final = 16
"""Bytes, and a divisor of integers, that triton compiles another kernel for."""


class Unplain(Exception):
    """An argument that no key stands for."""


class Frozen(NamedTuple):
    kernel: JITFunction[Any]
    """Kept, so that no other one gets its id."""
    compiled: CompiledKernel
    rest: tuple[Any, ...]
    """Of the parameters, those that are given by name."""


def freeze_launches() -> None:
    """From now on, in this process. Nothing where it is so already, and in triton's interpreter, which knows no
    JITFunction."""
    search = JITFunction.run
    if not triton.__version__.startswith(RELEASES) or hasattr(search, "frozen"):
        return
    frozen: dict[Any, Frozen] = {}

    def run(kernel: JITFunction[Any], *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        key = None
        if frozen and not warmup:
            device = driver.active.get_current_device()
            try:
                key = _key(kernel, device, arguments, named)
                known = frozen.get(key)
            except (Unplain, TypeError):
                return search(kernel, *arguments, grid=grid, warmup=warmup, **named)
            if known is not None and grid.__class__ is tuple and not kernel.pre_run_hooks:
                stream = driver.active.get_current_stream(device)
                known.compiled[(*grid, 1, 1)[:3]](*arguments, *known.rest, stream=stream)
                return known.compiled
        compiled = search(kernel, *arguments, grid=grid, warmup=warmup, **named)
        if not warmup and _is_plain(kernel, compiled, len(arguments)):
            with suppress(Unplain, TypeError):
                key = key or _key(kernel, driver.active.get_current_device(), arguments, named)
                frozen[key] = Frozen(kernel, compiled, _rest(kernel, len(arguments), named))
        return compiled

    run.frozen = frozen  # type: ignore[attr-defined]
    JITFunction.run = run


def describe(value: Any) -> Any:
    """All that triton tells of an argument before it chooses a kernel, or more. Unplain for what is not known here."""
    kind = value.__class__
    if kind is torch.Tensor:
        return value.dtype, value.data_ptr() % ALIGNMENT == 0
    if kind is int:
        return int, value == 1, value % ALIGNMENT == 0, -(1 << 31) <= value < 1 << 31, value < 1 << 63
    if kind is float or value is None:
        return kind
    if isinstance(value, tuple):
        return kind, *map(describe, value)
    raise Unplain


def _key(kernel: JITFunction[Any], device: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Compile-time parameters and options count by value, as triton compares them. Unplain or TypeError for what is not
    plain."""
    first = kernel.constexprs[0] if kernel.constexprs else len(arguments)
    # Most arguments are tensors: a call for each would cost more than all else here.
    told = [
        (value.dtype, value.data_ptr() % ALIGNMENT == 0) if value.__class__ is torch.Tensor else describe(value)
        for value in arguments[:first]
    ]
    return id(kernel), device, tuple(told), arguments[first:], tuple(named), tuple(named.values())


def _is_plain(kernel: JITFunction[Any], compiled: Any, given: int) -> bool:
    """Whether nothing but a launch's arguments decides about its kernel: run-time parameters, which come first and by
    place, and compile-time ones."""
    has_hooks = kernel.pre_run_hooks or triton.knobs.runtime.add_stages_inspection_hook is not None
    first = kernel.constexprs[0] if kernel.constexprs else len(kernel.params)
    in_order = first <= given and kernel.constexprs == [*range(first, len(kernel.params))]
    return type(compiled) is CompiledKernel and in_order and not has_hooks and not kernel.used_global_vals


def _rest(kernel: JITFunction[Any], given: int, named: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(named.get(param.name, param.default) for param in kernel.params[given:])
