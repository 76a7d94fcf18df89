"""download_in_process: from the hub to a folder, by a process that can be ended at any moment, as no thread can."""

import asyncio
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from loraplex.registry.files.child import child_command, child_environment

from .errors import SourceFailed
from .hub import HubAdapter
from .hub_worker import PROBLEMS, Downloaded, DownloadTask

WORKER: Final = "loraplex.web.sources.hub_worker"


async def download_in_process(
    adapter: HubAdapter, folder: Path, limits: Mapping[str, int], optional: Collection[str]
) -> None:
    """`hub.download`, ended when the caller is cancelled. Raises SourceMissing, SourceRefused, SourceFailed."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *child_command(WORKER), stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, env=_environment()
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        task = DownloadTask(adapter, str(folder), dict(limits), list(optional))
        process.stdin.write(msgspec.json.encode(task) + b"\n")
        answer = await process.stdout.read()
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if not answer:
        raise SourceFailed(f"The process that downloads {adapter.repository} ended with {code}. Try again.")
    problem = msgspec.json.decode(answer, type=Downloaded).problem
    if problem is not None:
        raise PROBLEMS[problem[0]](problem[1])


def _environment() -> dict[str, str]:
    """The hub's own settings, proxies and certificates, and no secrets of ours."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LORAPLEX_")}
    return inherited | child_environment()
