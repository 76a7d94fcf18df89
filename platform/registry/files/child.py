"""A child process for reading uploaded files: a task on its standard input, an answer on its standard output.

Whatever the files do to it, the API process gets a short answer or kills it.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

import msgspec

MAX_ANSWER = 1 << 20
"""Bytes that the child may answer with."""


class ChildFailed(ValueError):
    """The child gave no answer; the message says why."""


def ask_child(module: str, task: msgspec.Struct, seconds: int) -> bytes:
    """What the program `module` answers to the task. Raises ChildFailed."""
    document = msgspec.json.encode(task)
    try:
        child = subprocess.run(
            child_command(module), input=document, capture_output=True, timeout=seconds, env=child_environment()
        )
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"Checking the files took longer than {seconds} s.") from None
    if child.returncode != 0:
        raise ChildFailed(f"The process that checks the files crashed ({_last_line(child)}).")
    if len(child.stdout) > MAX_ANSWER:
        raise ChildFailed(f"The check of the files wrote a report of {len(child.stdout)} bytes.")
    return child.stdout


def child_command(module: str) -> list[str]:
    """How `module` is run as a program, without a look at the folder that the server was started in."""
    return [sys.executable, "-P", "-s", "-m", module]


def child_environment() -> dict[str, str]:
    """No secrets of ours, one thread, and the same loraplex that runs here."""
    source = str(Path(__file__).parents[3])
    return {"PATH": os.defpath, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def limit_child(cpu_seconds: int, memory: int, file_bytes: int) -> None:
    """What this process may use from now on: CPU time, address space, size of a file that it writes."""
    for what, amount in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 32),
    ):
        resource.setrlimit(what, (amount, amount))


def _last_line(child: "subprocess.CompletedProcess[bytes]") -> str:
    lines = child.stderr.decode("ascii", "backslashreplace").splitlines()
    return lines[-1][:200] if lines else f"exit status {child.returncode}"
