"""Set up before torch is imported by any test: the thread pool and the cache of compiled kernels."""

import gc
import os

from loraplex.engine.threads import prepare_environment

# Several test processes share the cores: a thread that waits must not spin on one.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
prepare_environment()


def pytest_collection_finish() -> None:
    """What all modules have imported by now stays: the garbage collector need not look through it in every test."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Extensions complain of what is left when Python ends."""
    gc.unfreeze()
