"""Threads are set once: one OpenMP pool for torch and numba, as many threads as the process may use."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from loraplex.engine.device import threads

ONE_POOL = """
import sys
from pathlib import Path
from loraplex.engine.device import threads
threads.prepare_environment()
threads.flush_subnormals()
count, sharing = threads.set_threads(1)
import numba, numpy, torch

@numba.njit(parallel=True)
def fill(values):
    for index in numba.prange(len(values)):
        values[index] = index

@numba.njit(parallel=True)
def halve(values):
    for index in numba.prange(len(values)):
        values[index] = values[index] * numpy.float32(0.5)

values = numpy.zeros(100)
fill(values)
subnormal = numpy.full(100, 1e-40, numpy.float32)
assert not (torch.from_numpy(subnormal) * 0.5).any()
halve(subnormal)
assert not subnormal.any()
assert (values == numpy.arange(100)).all()
assert (count, torch.get_num_threads(), numba.get_num_threads()) == (1, 1, 1)
assert sharing == "numba shares torch's OpenMP pool", sharing
assert threads.set_threads(1)[1] == sharing
pools = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "gomp" in line}
assert Path(sys.modules["numba.np.ufunc.omppool"].__file__).is_file()
assert len(pools) == 1 and numba.threading_layer() == "omp", pools
"""


@pytest.mark.skipif(sys.platform != "linux", reason="torch and numba share a pool on Linux")
def test_torch_and_numba_run_on_one_pool(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    subprocess.run([sys.executable, "-c", ONE_POOL], env=environment, check=True, timeout=120)
    (folder,) = (tmp_path / "loraplex").glob("kernels-*")
    assert folder.stat().st_mode & 0o077 == 0


def test_kernels_of_another_system_or_processor_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers on one system share the first two; only one of them may be let at the matrix registers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folders = []
    for release, flags, matrix in (
        ("5.10.0", "flags : avx2", False),
        ("6.8.0", "flags : avx2", False),
        ("6.8.0", "flags : avx2 amx_tile", False),
        ("6.8.0", "flags : avx2 amx_tile", True),
        ("6.8.0", "flags : avx2 amx_tile", True),
    ):
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        monkeypatch.setattr(platform, "release", lambda release=release: release)
        monkeypatch.setattr(threads, "may_use_matrix_registers", lambda matrix=matrix: matrix)
        (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
        monkeypatch.setattr(threads, "CPU_INFO", tmp_path / "cpuinfo")
        threads.prepare_environment()
        folders.append(os.environ["NUMBA_CACHE_DIR"])
    assert len(set(folders)) == 4 == len(list((tmp_path / "loraplex").iterdir()))
    assert folders[-1] == folders[-2]


@pytest.mark.parametrize("count", [0, -1, 100_000])
def test_a_count_the_machine_does_not_have_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"num_threads is {count}, but this process may use"):
        threads.set_threads(count)


@pytest.mark.parametrize("text,cores", [("max 100000", 1 << 16), ("150000 100000", 1), ("400000 100000", 4)])
def test_a_containers_quota_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(threads, "CGROUP_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    assert threads.available_cores() == min(64, cores)


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/elsewhere")
    threads.prepare_environment()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    assert os.environ["NUMBA_CACHE_DIR"] == "/elsewhere"
