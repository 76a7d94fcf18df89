"""keep_for_good: what a process has made at its start is looked through for garbage no more.

Python's full collections visit every object, also the hundreds of thousands that libraries made as they were imported,
and no step runs meanwhile.
"""

import gc


def keep_for_good() -> None:
    """Call once in a process that serves, when it has started."""
    gc.collect()
    gc.freeze()
