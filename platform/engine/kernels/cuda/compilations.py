"""Which kernels triton compiles in this process, told before and after."""

from collections.abc import Callable
from typing import Any

import triton
from triton.runtime.jit import JITFunction


def tell_compilations(begun: Callable[[str], None], ended: Callable[[str], None]) -> None:
    """From now on call both with the name of each kernel that is compiled, or fetched from the cache on disk: either
    takes longer than a step. Who listened before goes on listening."""
    listener, compile_now = triton.knobs.compilation.listener, JITFunction._do_compile

    def begin(kernel: Any, *arguments: Any) -> Any:
        begun(kernel.__name__)
        return compile_now(kernel, *arguments)

    def end(**facts: Any) -> None:
        if listener is not None:
            listener(**facts)
        ended(str(facts["metadata"].get("name", "a kernel")))

    JITFunction._do_compile, triton.knobs.compilation.listener = begin, end
