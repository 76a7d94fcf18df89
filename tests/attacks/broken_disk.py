"""BrokenDisk: one operation of a load goes wrong, chosen by its number."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, Literal

import pytest

Fault = Literal["error", "short", "changed"]


class BrokenDisk:
    """Counts opening and reading of adapter files; while it is `broken`, operation number `at` fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at, self.fault = 0, -1, "error"
        disk, read_whole = self, Path.read_bytes

        class File(FileIO):
            def __init__(self, path: Path) -> None:
                disk.pass_through(b"")
                super().__init__(path)

            def readinto(self, target: Any, /) -> int:
                data = disk.pass_through(super().read(len(target)))
                target[: len(data)] = data
                return len(data)

        monkeypatch.setattr("loraplex.lora.residency.weights.FileIO", File)
        monkeypatch.setattr(Path, "read_bytes", lambda path: self.pass_through(read_whole(path)))

    @contextmanager
    def broken(self, at: int, fault: Fault) -> Iterator[None]:
        self.count, self.at, self.fault = 0, at, fault
        yield
        self.at = -1

    def pass_through(self, data: bytes) -> bytes:
        """What arrives of the data that an operation reads."""
        self.count += 1
        if self.count - 1 != self.at:
            return data
        if self.fault == "error" or not data:
            raise OSError(errno.EIO, "Input/output error")
        return b"" if self.fault == "short" else bytes([data[0] ^ 1]) + data[1:]
