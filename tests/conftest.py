"""Set up before torch is imported by any test: the thread pool and the cache of compiled kernels.

Whatever a test does, and all that the API does within its process: nothing goes to another machine.
"""

import gc
import os
from collections.abc import Generator

import hypothesis
import pytest

from loraplex.engine.threads import prepare_environment

from .network import Watch

# Several test processes share the cores: a thread that waits must not spin on one.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
prepare_environment()
# A busy machine is no failure.
hypothesis.settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")
NETWORK = Watch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    result = yield
    assert NETWORK.take() == [], "this test, or what it left running, tried to reach another machine"
    return result


def pytest_collection_finish() -> None:
    """What all modules have imported by now stays: the garbage collector need not look through it in every test."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Extensions complain of what is left when Python ends."""
    gc.unfreeze()
