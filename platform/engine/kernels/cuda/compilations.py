"""Which kernels triton compiles in this process, told as it happens."""

from collections.abc import Callable
from typing import Any

import triton


def tell_compilations(tell: Callable[[str], None]) -> None:
    """From now on call `tell` with the name of each kernel that was compiled, or fetched from the cache on disk: either
    takes longer than a step. Who listened before goes on listening."""
    before = triton.knobs.compilation.listener

    def listen(**facts: Any) -> None:
        if before is not None:
            before(**facts)
        tell(str(facts["metadata"].get("name", "a kernel")))

    triton.knobs.compilation.listener = listen
