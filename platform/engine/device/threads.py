"""Threads of the engine process, set once: how many, one pool for torch and numba, and how they wait for work."""

import hashlib
import os
import platform
import tempfile
from pathlib import Path

from loraplex.quant.kernels.instructions.permission import may_use_matrix_registers

from ..cache_paths import sources_digest, user_cache

KERNELS = ("engine/**/kernels/**/*.py", "lora/kernels/**/*.py", "quant/kernels/**/*.py")
CPU_INFO = Path("/proc/cpuinfo")
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
LOCATORS = "loraplex.engine.kernels.cache_locator.PackageLocator,UserProvidedCacheLocator"
SPINS = "4000"
"""How long a thread waits awake for the next kernel: longer than between two of them, and short enough that between
two steps the API process finds a free core (measured: 20,000 cost one stream about a tenth)."""


def prepare_environment() -> None:
    """Set what torch's OpenMP and numba read when they are loaded; a value the user has set stays.

    Call first of all in a process that will run the model: later it has no effect.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    if "NUMBA_CACHE_DIR" not in os.environ:
        os.environ["NUMBA_CACHE_DIR"] = str(_kernel_cache())
        os.environ.setdefault("NUMBA_CACHE_LOCATOR_CLASSES", LOCATORS)


def set_threads(count: int | None = None) -> tuple[int, str]:
    """Give torch and numba together `count` threads, or all cores this process may use; what numba compiles, processes
    that share its cache compile once.

    Returns the number and, in words, how they are shared. Raises ValueError for a count the machine does not have.
    """
    from ..kernels.one_compiler import share_compiled_kernels
    from ..kernels.openmp import numba_thread_limit, set_numba_threads, share_torch_openmp

    share_compiled_kernels()
    chosen = _checked(count, min(available_cores(), numba_thread_limit()))
    sharing = share_torch_openmp()
    _set_torch_threads(chosen)
    set_numba_threads(chosen)
    return chosen, sharing


def set_host_threads(count: int | None = None) -> int:
    """The same for torch alone, beside a device that computes."""
    chosen = _checked(count, available_cores())
    _set_torch_threads(chosen)
    return chosen


def _checked(count: int | None, limit: int) -> int:
    if count is not None and not 1 <= count <= limit:
        raise ValueError(f"num_threads is {count}, but this process may use {limit} cores; leave it out or lower it")
    return limit if count is None else count


def _set_torch_threads(count: int) -> None:
    import torch  # prepare_environment() must come before

    torch.set_num_threads(count)


def flush_subnormals() -> None:
    """Count numbers below 1e-38 as zero, in this thread and in those of the pool that it starts.

    One adapter with such weights would otherwise cost everyone in its batch up to 90 times the time (measured). For a
    process of our own: other code may rely on them.
    """
    import torch  # prepare_environment() must come before

    torch.set_flush_denormal(True)


def available_cores() -> int:
    """Cores this process may use: its affinity, cut by a container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _quota_cores()))


def _quota_cores() -> int:
    try:
        quota, period = CGROUP_QUOTA.read_text().split()
    except OSError:
        return 1 << 16
    return 1 << 16 if quota == "max" else int(quota) // int(period)


def _offered() -> str:
    """In words for a folder's name: the processor's features as the system tells them, and which registers it gives."""
    flags = hashlib.sha256(_processor_flags().encode()).hexdigest()[:8]
    return f"{platform.release()}-{flags}-{'matrix' if may_use_matrix_registers() else 'vectors'}"


def _processor_flags() -> str:
    """Empty where the system does not tell; numba still asks the processor itself."""
    try:
        with CPU_INFO.open() as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return ""


def _kernel_cache() -> Path:
    """Compiled kernels are code: they go to a folder only this user can write, one for each state of the sources and
    of what the processor offers to this process.

    Numba looks for changes only in the file a kernel is in, not in those it takes functions from. It tells processors
    apart, but not processes that may use matrix registers (AMX) from those that may not: another release of the system,
    or of two containers on one the one that is denied them.
    """
    folder = user_cache() / f"kernels-{sources_digest(*KERNELS)}-{_offered()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="loraplex-kernels-"))
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="loraplex-kernels-"))
