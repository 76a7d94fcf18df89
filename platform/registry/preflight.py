"""Is this adapter servable on this base? A list of pass, warn and fail, each with its reason and remedy.

The files are hostile until proven otherwise, so they are read in a child process with limits on time, memory and files:
whatever they do to it, the API process gets a short verdict or kills it.
"""

import os
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import msgspec

from loraplex.lora.manifest import BaseSignature

from .artifacts import ArtifactStore, Blob
from .base import ServedBase
from .report import Finding, Report

MAX_VERDICT = 1 << 20
"""Bytes of JSON that the child may answer with."""
MAX_CHILDREN = 2
_REMEMBERED = 64


class Task(msgspec.Struct, frozen=True):
    """What the child reads from its standard input."""

    config: str
    weights: str
    base: BaseSignature
    cpu_seconds: int
    memory: int


class Preflight:
    """Checks against one base. `memory`: bytes of address space of the child, beside the size of the weights file."""

    def __init__(self, store: ArtifactStore, base: ServedBase, seconds: int = 60, memory: int = 1 << 30) -> None:
        self._store, self._base, self._seconds, self._memory = store, base, seconds, memory
        self._lock, self._turns = threading.Lock(), threading.Semaphore(MAX_CHILDREN)
        self._reports: OrderedDict[tuple[str, str], Report] = OrderedDict()

    def check(self, config: Blob, weights: Blob) -> Report:
        """The report on these two blobs. Blocks until the child has answered; bytes that passed are not read again."""
        key = (config.sha256, weights.sha256)
        with self._turns:
            report = self._reports.get(key) or self._inspect(config, weights)
        if report.passed:
            self._remember(key, report)
        return report

    def _remember(self, key: tuple[str, str], report: Report) -> None:
        with self._lock:
            self._reports[key] = report
            if len(self._reports) > _REMEMBERED:
                self._reports.popitem(last=False)

    def _inspect(self, config: Blob, weights: Blob) -> Report:
        task = self._task(config, weights)
        command = [sys.executable, "-P", "-s", "-m", "loraplex.registry.preflight_worker"]
        try:
            child = subprocess.run(
                command, input=msgspec.json.encode(task), capture_output=True, timeout=self._seconds, env=_environment()
            )
        except subprocess.TimeoutExpired:
            return _unreadable(f"Reading the files took longer than {self._seconds} s.")
        return _verdict(child)

    def _task(self, config: Blob, weights: Blob) -> Task:
        return Task(
            config=str(self._store.blob_path(config.sha256)),
            weights=str(self._store.blob_path(weights.sha256)),
            base=replace(self._base.signature, name=self._base.model),
            cpu_seconds=self._seconds,
            memory=self._memory + weights.size,
        )


def _verdict(child: "subprocess.CompletedProcess[bytes]") -> Report:
    if child.returncode != 0:
        return _unreadable(f"Reading the files ended the checker ({_last_line(child)}).")
    if len(child.stdout) > MAX_VERDICT:
        return _unreadable(f"The files gave a report of {len(child.stdout)} bytes.")
    return msgspec.json.decode(child.stdout, type=Report)


def _last_line(child: "subprocess.CompletedProcess[bytes]") -> str:
    lines = child.stderr.decode("ascii", "backslashreplace").splitlines()
    return lines[-1][:200] if lines else f"exit status {child.returncode}"


def _unreadable(message: str) -> Report:
    remedy = "Save the adapter again with PEFT's save_pretrained() and upload both files."
    return Report([Finding("readable", "fail", message, remedy)])


def _environment() -> dict[str, str]:
    """No secrets of ours, one thread, and the same loraplex that runs here."""
    source = str(Path(__file__).parents[2])
    return {"PATH": os.defpath, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
