"""The process that downloads an adapter from the hub: a DownloadTask on a line of standard input, a Downloaded back.

It ends when its standard input does, so that no download outlives the server.
"""

import os
import sys
import threading
from pathlib import Path

import msgspec

from .errors import SourceFailed, SourceMissing, SourceRefused
from .hub import HubAdapter, download

PROBLEMS = {kind.__name__: kind for kind in (SourceFailed, SourceMissing, SourceRefused)}


class DownloadTask(msgspec.Struct):
    """`limits`: file -> most bytes; `optional`: files that need not be there."""

    adapter: HubAdapter
    folder: str
    limits: dict[str, int]
    optional: list[str]


class Downloaded(msgspec.Struct):
    """`problem`: a name in PROBLEMS and its words; None: the files are in the folder."""

    problem: tuple[str, str] | None = None


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=DownloadTask)
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    answer = Downloaded()
    try:
        download(task.adapter, Path(task.folder), task.limits, task.optional)
    except (SourceFailed, SourceMissing, SourceRefused) as error:
        answer = Downloaded((type(error).__name__, str(error)))
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def _end_with_the_server() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
