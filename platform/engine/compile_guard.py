"""CompileGuard: tells when a kernel is compiled while requests are served. The warm-up has forgotten its shape then,
and some request waits for the compiler."""

import logging
import sys
from typing import Final

MOST_LOGGED: Final = 20
"""Kernels named in the log; the counter goes on."""

logger = logging.getLogger(__name__)


class CompileGuard:
    """Made when the engine is ready; one for a process."""

    def __init__(self) -> None:
        self.late = 0
        """Kernels compiled since."""
        if "triton" in sys.modules:
            # Where nothing has imported triton yet, nothing on a CUDA device serves.
            from .kernels.cuda.compilations import tell_compilations

            tell_compilations(self.note)

    def note(self, kernel: str) -> None:
        self.late += 1
        if self.late <= MOST_LOGGED:
            logger.warning("kernel %s was compiled while requests are served; it belongs to the warm-up", kernel)
