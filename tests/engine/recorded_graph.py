"""A CUDA graph's double on the CPU: a launch is recorded without running, and replayed with its addresses and numbers.

Kernels run in triton's interpreter. What waits for the device while it is recorded is a mistake, as on one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

from loraplex.engine.device.stream import Launch

WAITS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.equal.default}
ALLOCATES = ("aten::empty", "aten::new_empty")
Work = list[Callable[[], object]]


class RecordedGraph:
    captured = replayed = 0
    """Of all graphs."""

    def __init__(self, launch: Launch) -> None:
        self._work: Work = []
        kernels = InterpretedFunction.run
        InterpretedFunction.run = lambda *arguments, **named: self._work.append(partial(kernels, *arguments, **named))
        try:
            with Recording(self._work):
                launch()
        finally:
            InterpretedFunction.run = kernels
        RecordedGraph.captured += 1

    def replay(self) -> None:
        for work in self._work:
            work()
        RecordedGraph.replayed += 1


class Recording(TorchDispatchMode):
    """Records what writes memory of torch, in its order."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert func not in WAITS, f"{func} waits for the device"
        if func._schema.is_mutable:
            self._work.append(partial(func, *args, **kwargs))
            return self._written(func, args, kwargs)
        result = func(*args, **kwargs)
        # A schema tells only what may be a view: `to` is one, or a copy.
        is_view = any(isinstance(arg, torch.Tensor) and _memory(arg) == _memory(result) for arg in args)
        if not is_view and not func.name().startswith(ALLOCATES):
            self._work.append(partial(_again, result, func, args, kwargs))
        return result

    def _written(self, func: Any, args: Any, kwargs: Any) -> Any:
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        written = [
            given[argument.name]
            for argument in func._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        return written[0] if len(func._schema.returns) == 1 else tuple(written)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _again(result: torch.Tensor, func: Any, args: Any, kwargs: Any) -> None:
    """Into the memory that the result had when it was recorded."""
    result.copy_(func(*args, **kwargs))
