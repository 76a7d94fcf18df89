"""Where the processes of a server connect to: each Python that starts with this environment writes it down."""

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

LOG = "NETWORK_LOG"
ESTABLISHED = "01"
HOOK = """
import os
import sys

LOG = os.open(os.environ["NETWORK_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
PROGRAM = " ".join(sys.orig_argv[1:])


def tell(event, where):
    os.write(LOG, f"{PROGRAM}\\t{event}\\t{where}\\n".encode())


def look(event, arguments):
    if event in ("socket.connect", "socket.sendto"):
        tell(event, arguments[1])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        tell(event, tuple(arguments[:2]))


tell("started", "")
sys.addaudithook(look)
"""
"""As sitecustomize.py, which Python imports before anything else; programs that read strangers' files get a path of
their own and are not among them."""


@dataclass(frozen=True)
class Attempt:
    program: str
    event: str
    where: str


def watch_network(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """For all that starts from now on. `folder` keeps the log."""
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HOOK)
    paths = [str(folder / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])]
    patch.setenv("PYTHONPATH", os.pathsep.join(paths))
    patch.setenv(LOG, str(folder / "network.log"))


def attempts(folder: Path) -> list[Attempt]:
    """In the order of time."""
    lines = (folder / "network.log").read_text().splitlines()
    return [Attempt(*line.split("\t")) for line in lines]


def connections_of(pid: int, listening: int) -> set[tuple[str, int]]:
    """Where a process is connected to now, by libraries in C too, which the hook does not see. Not those who came to
    its port `listening`."""
    inodes = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    own = [(row[1], row[2]) for row in rows if row[3] == ESTABLISHED and f"socket:[{row[9]}]" in inodes]
    return {_address(remote) for local, remote in own if _address(local)[1] != listening}


def _address(text: str) -> tuple[str, int]:
    """0100007F:1F90 -> 127.0.0.1, 8080."""
    host, port = text.split(":")
    return socket.inet_ntoa(struct.pack("<L", int(host, 16))), int(port, 16)
