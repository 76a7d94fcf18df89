"""run_certify: a parity certificate from a process of its own, which dies with whoever waits for it. No torch."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from .certificate import WORKER, Certificate, CertifyJob

OnProgress = Callable[[float, str], None]
"""Called with the share that is done, 0 to 1, and what is done now, in words."""
LONGEST_LINE: Final = 1 << 20
LAST_WORDS: Final = 2000
"""Bytes of its standard error that are looked at when it ends without an answer."""


class WorkerFault(ValueError):
    """Of ours, or want of memory or a file: the words have an exception, or the last line of a worker that ended
    without an answer."""


def run_certify(job: CertifyJob, on_progress: OnProgress, timeout_seconds: float | None = None) -> Certificate:
    """`certify` for a caller without an event loop; Ctrl-C ends the worker too."""
    return asyncio.run(certify(job, on_progress, timeout_seconds))


async def certify(job: CertifyJob, on_progress: OnProgress, timeout_seconds: float | None = None) -> Certificate:
    """Have the worker compute it. The worker is killed when the caller is cancelled or the time is over.

    ValueError says why there is no certificate.
    """
    command = (sys.executable, "-P", "-m", WORKER)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, limit=LONGEST_LINE)
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _converse(process, job, on_progress)
    except TimeoutError:
        raise ValueError(
            f"the parity certificate was not ready after {timeout_seconds:.0f} s: allow more (certificate_timeout), or "
            "give fewer or shorter prompts"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _converse(process: asyncio.subprocess.Process, job: CertifyJob, on_progress: OnProgress) -> Certificate:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    last_words = asyncio.create_task(_tail(process.stderr))
    process.stdin.write(msgspec.json.encode(job.to_json()))
    process.stdin.close()
    async for line in process.stdout:
        message: dict[str, Any] = msgspec.json.decode(line)
        if "progress" in message:
            on_progress(message["progress"], message["stage"])
        elif "error" in message:
            raise ValueError(message["error"])
        elif "fault" in message:
            raise WorkerFault(message["fault"])
        else:
            return Certificate.from_json(message["certificate"])
    code = await process.wait()
    raise WorkerFault(f"the certifying process ended without an answer ({_ending(code, await last_words)})")


async def _tail(stream: asyncio.StreamReader) -> bytes:
    """The end of what is written there; read all along, so that nobody waits for us."""
    kept = b""
    while piece := await stream.read(LAST_WORDS):
        kept = (kept + piece)[-LAST_WORDS:]
    return kept


def _ending(code: int, last_words: bytes) -> str:
    if code < 0:
        return f"signal {-code}; it may have had too little memory"
    lines = last_words.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else f"exit code {code}"
