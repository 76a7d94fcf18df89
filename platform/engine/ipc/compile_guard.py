"""CompileGuard: tells when a kernel is compiled while requests are served. The warm-up has forgotten its shape then,
and some request waits for the compiler.

The API process hears of a compilation before it begins, and lets the engine be silent for it. Kernels of triton are
also logged and counted in the heartbeat.
"""

import logging
import sys
import threading
from collections.abc import Callable
from typing import Final

MOST_LOGGED: Final = 20
"""Kernels named in the log; the counter goes on."""

logger = logging.getLogger(__name__)


class CompileGuard:
    """Made when the engine is ready; one for a process."""

    def __init__(self, tell_begun: Callable[[str], None]) -> None:
        """`tell_begun` is called with the name of a kernel for which the main thread is going to wait."""
        self.late = 0
        """Kernels that triton has compiled since."""
        self._tell_begun = tell_begun
        if "triton" in sys.modules:
            # Where nothing has imported triton yet, nothing on a CUDA device serves.
            from ..kernels.cuda import compilations

            compilations.tell_compilations(self.begin, self.note)
        if "numba" in sys.modules:
            from ..kernels import one_compiler

            one_compiler.tell_compilations(self.begin)

    def begin(self, kernel: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self._tell_begun(kernel)

    def note(self, kernel: str) -> None:
        self.late += 1
        if self.late <= MOST_LOGGED:
            logger.warning("kernel %s was compiled while requests are served; it belongs to the warm-up", kernel)
