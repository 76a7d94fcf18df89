"""Writers of one SQLite file take turns, and none waits for a turn that nobody has."""

import threading
from pathlib import Path

import pytest

from loraplex.registry.database.sqlite_write_lock import WriteLock


def enter(lock: WriteLock) -> str:
    try:
        with lock:
            return "entered"
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_who_comes_after_it_is_closed_is_told(tmp_path: Path, held: bool) -> None:
    lock, found = WriteLock(tmp_path / "turn"), list[str]()
    if held:
        with lock:
            lock.close()
    else:
        lock.close()
    threads = [threading.Thread(target=lambda: found.append(enter(lock)), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == ["I/O operation on closed file"] * 3
