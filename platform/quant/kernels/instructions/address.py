# mypy: allow-untyped-decorators
"""Compiled functions that others call by their address, and what lies at an address.

numba builds all that a function calls into it once more and optimizes the whole again. A function that is called by
its address is compiled once, and its callers are the same code whichever function it is.
"""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic


def address_of(function: Any) -> int:
    """Of an `njit` function whose arguments are all int64, compiled or fetched from numba's cache. TypeError: it has a
    result, which a call by address would lose."""
    arguments = (types.int64,) * function.py_func.__code__.co_argcount
    if arguments not in function.overloads:
        function.compile(arguments)
    compiled = function.overloads[arguments]
    if compiled.signature.return_type != types.none:
        raise TypeError(f"{function.__name__} has a result, which is lost when it is called by address")
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


@intrinsic
def call(typing: Any, address: Any, arguments: Any) -> Any:
    """Call what `address_of` gave, with a tuple of integers of 64 bits. What the function raises, this raises."""
    given = tuple(arguments)
    if not all(isinstance(kind, types.Integer) and kind.bitwidth == 64 for kind in given):
        raise TypingError(f"what is called by its address takes integers of 64 bits, not {given}")

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        convention = context.call_conv
        function = builder.inttoptr(values[0], convention.get_function_type(types.none, given).as_pointer())
        members = cgutils.unpack_tuple(builder, values[1])
        status, _ = convention.call_function(builder, function, types.none, given, members)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.none(types.int64, arguments), generate


@intrinsic
def pointer(typing: Any, address: Any, like: Any) -> Any:
    """What is at an address, as a pointer to elements of like's type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.int64, like), generate
