"""Processes that share a cache of compiled kernels compile each kernel once: the others wait and take it from there.

Two servers that start side by side, or a certificate beside a server, would otherwise both spend the first start's
minutes. Numba's own cache also loses entries, and can mix them up, where two processes save at the same moment. And it
names kernels by a count that begins anew in each process: of two that have one name, the first that is loaded would be
called for both.
"""

import fcntl
import hashlib
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np
from numba.core import config, dispatcher
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock

from .cache_locator import place_of

LONGEST_WAIT: Final = 600.0
"""Seconds after which one compiles for oneself: the other may be stopped and not ended."""
LOOKS: Final = 0.05
FILE: Final = "compiling.lock"

_compile: Final = dispatcher.Dispatcher.compile
_save: Final = FunctionCache.save_overload
_descriptors: Final[dict[Path, int]] = {}
"""Never closed: closing one would give up all locks this process has in the file."""
_listeners: Final[list[Callable[[str], None]]] = []
_gave_up: Final = threading.Event()
"""Set once somebody took too long: who is stopped may hold more kernels, and nobody waits for each of them anew."""


def share_compiled_kernels() -> None:
    """For all numba functions of this process that have `cache=True`; calling it again changes nothing."""
    _count_from_anywhere()
    dispatcher.Dispatcher.compile = _compile_in_turn  # type: ignore[method-assign, assignment]
    FunctionCache.save_overload = _save_in_turn


def tell_compilations(begun: Callable[[str], None]) -> None:
    """From now on call `begun` with the name of each kernel before it is compiled, or fetched from the cache. Where
    another process compiles it, that takes minutes."""
    _listeners.append(begun)


def _count_from_anywhere() -> None:
    """No two processes give a kernel the same name, forked ones neither."""
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(62))


os.register_at_fork(after_in_child=_count_from_anywhere)


def _compile_in_turn(kernel: Any, signature: Any) -> Any:
    """The compiler's lock comes first: a thread that had its kernel's turn and waited for the compiler's lock, which
    another thread of ours holds as it waits for a second process, would wait for ever if that one wants its kernel."""
    if not isinstance(kernel._cache, FunctionCache):
        return _compile(kernel, signature)
    for begun in _listeners:
        begun(kernel.py_func.__name__)
    _start_threads()
    with global_compiler_lock, _turn(_place(kernel.py_func, signature, *_constants(kernel.py_func))):
        return _compile(kernel, signature)


def _start_threads() -> None:
    """numba starts them for a kernel with a parallel loop, also where it comes from the cache. Of a kernel that has
    such a one in it, it forgets that, if that one came from the cache as this was compiled: its call would end the
    process. Asking how many threads there are starts them."""
    numba.get_num_threads()


def _save_in_turn(cache: Any, signature: Any, compiled: Any) -> None:
    """All signatures of a function share one index, which numba reads, changes and writes. Beside another that does so
    nothing is saved: two could mix their kernels up."""
    with _turn(_place(cache._py_func)) as ours:
        if ours:
            _save(cache, signature, compiled)


def _place(function: Callable[..., Any], *what: object) -> int:
    """The byte that is locked for it, beyond the file's end; two kernels on one byte wait more than they need."""
    code = function.__code__
    name = f"{place_of(code.co_filename)}:{code.co_firstlineno}:{what}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])


def _constants(function: Callable[..., Any]) -> Iterator[object]:
    """What tells kernels apart that one function makes, as far as it reads the same in every process."""
    for cell in function.__closure__ or ():
        if isinstance(cell.cell_contents, int | tuple | np.ndarray):
            yield cell.cell_contents


@contextmanager
def _turn(place: int) -> Iterator[bool]:
    """False: another has it all the while. Where the folder or its file system has no locks, it is everybody's."""
    descriptor = _lock_file()
    ours = descriptor is None or _wait(descriptor, place)
    try:
        yield ours
    finally:
        if ours and descriptor is not None:
            with suppress(OSError):
                fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, place)


def _lock_file() -> int | None:
    if not config.CACHE_DIR:
        return None
    path = Path(config.CACHE_DIR, FILE)
    if path not in _descriptors:
        try:
            _descriptors[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
    return _descriptors[path]


def _wait(descriptor: int, place: int) -> bool:
    """False once it takes too long. Only EAGAIN says that another has it: a system that lets this process lock nothing
    answers EACCES or EPERM every time."""
    deadline = time.monotonic() + (0 if _gave_up.is_set() else LONGEST_WAIT)
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                _gave_up.set()
                return False
            time.sleep(LOOKS)
        except OSError:
            return True
