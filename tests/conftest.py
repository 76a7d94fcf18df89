"""Set up before torch is imported by any test: the thread pool and the cache of compiled kernels.

Whatever a test does, and all that the API does within its process: nothing goes to another machine.
"""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from loraplex.engine.cache_paths import user_cache
from loraplex.engine.device.threads import prepare_environment
from loraplex.engine.processes.long_lived import keep_for_good

from .campaign import Campaign, choose_seed
from .network import Watch

# Several test processes share the cores: a thread that waits must not spin on one.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
choose_seed()
prepare_environment()
os.environ.setdefault("TRITON_CACHE_DIR", str(user_cache() / "triton"))
from loraplex.engine.kernels.one_compiler import share_compiled_kernels  # noqa: E402  (numba reads the environment)

share_compiled_kernels()
# A busy machine is no failure.
hypothesis.settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")
NETWORK = Watch()
collect_ignore = ["clients"]
"""They run in an environment of their own: make clients."""
LONGEST = (
    "engine/test_cuda_interpreted.py",
    "attacks/test_killed_server.py",
    "benchmarks/test_gpu_engine.py",
    "attacks/test_live_server.py",
    "engine/certify/test_process.py",
    "engine/ipc/test_hanging_engine.py",
    "benchmarks/test_gpu.py",
    "engine/model/test_fused.py",
    "integration/test_certificates.py",
    "engine/model/test_kinds.py",
    "engine/model/test_correctness.py",
    "integration/test_canaries.py",
    "integration/test_crash_ledger.py",
    "registry/usage/test_ledger.py",
    "test_demo.py",
    "test_demo_quantized.py",
    "web/test_schemas.py",
)
"""Files that take long: several processes take one file after the other, and whoever took one of these last
would leave the cores of the others idle."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    result = yield
    assert NETWORK.take() == [], "this test, or what it left running, tried to reach another machine"
    return result


@pytest.fixture
def campaign() -> Campaign:
    """Which cases of a long campaign to try. If the test fails, its report has the command that tries them again."""
    return Campaign.from_environment()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and "campaign" in item.keywords:
        report.sections.append(("the same cases again", Campaign.from_environment().command(item.nodeid)))
    return report


def pytest_itemcollected(item: pytest.Item) -> None:
    if "campaign" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.campaign)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; what is in a file keeps its order, and all processes come to the same one."""
    places = {Path(__file__).parent / file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """What all modules have imported by now stays: the garbage collector need not look through it in every test."""
    keep_for_good()


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """For tests of what is frozen: nothing is at their beginning."""
    gc.unfreeze()
    yield
    gc.freeze()


def pytest_unconfigure() -> None:
    """Extensions complain of what is left when Python ends."""
    gc.unfreeze()
