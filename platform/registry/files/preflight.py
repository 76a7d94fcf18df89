"""Is this adapter servable on this base? A list of pass, warn and fail, each with its reason and remedy.

The files are hostile until proven otherwise, so they are read in a child process with limits on time, memory and files:
whatever they do to it, the API process gets a short verdict or kills it.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

import msgspec

from loraplex.lora.files.manifest import BaseSignature

from ..base import ServedBase
from ..report import Finding, Report
from .artifacts import ArtifactStore
from .child import ChildFailed, ask_child
from .conversion import convert, needs_conversion
from .incoming import Blob

MAX_CHILDREN = 2
_REMEMBERED = 64


class Task(msgspec.Struct, frozen=True):
    """What the child reads from its standard input."""

    config: str
    weights: str
    base: BaseSignature
    base_folder: str | None
    cpu_seconds: int
    memory: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """The two files as they would be served, and what was found in them."""

    config: Blob
    weights: Blob
    report: Report


class Preflight:
    """Checks against one base. `memory`: bytes of address space of the child, beside the size of the weights file."""

    def __init__(self, store: ArtifactStore, base: ServedBase, seconds: int = 60, memory: int = 1 << 30) -> None:
        self._store, self._base, self._seconds, self._memory = store, base, seconds, memory
        self._lock, self._turns = threading.Lock(), threading.Semaphore(MAX_CHILDREN)
        self._reports: OrderedDict[tuple[str, str], Report] = OrderedDict()

    def prepare(self, config: Blob, weights: Blob) -> Prepared:
        """Convert these two blobs where their kind is not served as it is, and check what is to be served.

        Blocks until the children have answered. Raises StorageFull.
        """
        if not needs_conversion(self._store, self._base.signature, config, weights):
            return Prepared(config, weights, self.check(config, weights))
        with self._turns:
            made = convert(self._store, self._base.signature, config, weights)
        if any(finding.level == "fail" for finding in made.findings):
            return Prepared(config, weights, Report(made.findings))
        report = self.check(made.config, made.weights)
        return Prepared(made.config, made.weights, Report(made.findings + report.findings, report.summary))

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
        try:
            answer = ask_child("loraplex.registry.files.preflight_worker", self._task(config, weights), self._seconds)
        except ChildFailed as error:
            return _unreadable(str(error))
        return msgspec.json.decode(answer, type=Report)

    def _task(self, config: Blob, weights: Blob) -> Task:
        return Task(
            config=str(self._store.blob_path(config.sha256)),
            weights=str(self._store.blob_path(weights.sha256)),
            base=replace(self._base.signature, name=self._base.model),
            base_folder=None if self._base.folder is None else str(self._base.folder),
            cpu_seconds=self._seconds,
            memory=self._memory + weights.size,
        )


def _unreadable(message: str) -> Report:
    remedy = "Save the adapter again with PEFT's save_pretrained() and upload both files."
    return Report([Finding("readable", "fail", message, remedy)])
