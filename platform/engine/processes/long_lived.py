"""starting: what a process makes at its start stays, so Python's garbage collector leaves it alone.

A full collection visits every object, also the hundreds of thousands that libraries made as they were imported. At the
start such collections find nothing, over and over: without them kernels compile a tenth faster. Later no step runs
while one works.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """No collection runs within. At the end one does, and later ones skip all that is alive by then."""
    gc.disable()
    try:
        yield
        keep_for_good()
    finally:
        gc.enable()


def keep_for_good() -> None:
    """Call once in a process that serves, when it has started."""
    gc.collect()
    gc.freeze()
