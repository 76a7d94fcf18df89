"""Adapters of other kinds become LoRA before they are checked: two received files in, two files in the store out.

As in preflight, a child process reads the files and writes the new ones, with limits on time, memory and bytes.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loraplex.lora.conversion.kinds import MAX_SOURCE_CONFIG, SMALLER, is_converted
from loraplex.lora.files.manifest import BaseSignature

from ..report import Finding
from .artifacts import CONFIG_FILE, WEIGHTS_FILE, ArtifactStore
from .child import ChildFailed, ask_child
from .incoming import Blob

SECONDS = 300
MEMORY = 3 << 30
"""Bytes of address space of the child: a few matrices of the largest linear, and the libraries."""
MAX_WEIGHTS = 16 << 30
"""Bytes of the LoRA adapter. It can be much larger than its source, which is what such kinds are for."""


class ConversionTask(msgspec.Struct, frozen=True):
    """What the child reads from its standard input."""

    config: str
    weights: str
    base: BaseSignature
    folder: str
    """Where the two new files go."""
    cpu_seconds: int
    memory: int
    largest: int


@dataclass(frozen=True, slots=True)
class Conversion:
    findings: list[Finding]
    """What was done; or why not, as a failure."""
    config: Blob
    weights: Blob
    """The files to serve; with a failure those that came."""


def needs_conversion(store: ArtifactStore, base: BaseSignature, config: Blob, weights: Blob) -> bool:
    files = [store.blob_path(blob.sha256) for blob in (config, weights)]
    return config.size <= MAX_SOURCE_CONFIG and is_converted(files[0].read_bytes(), files[1], base)


def convert(store: ArtifactStore, base: BaseSignature, config: Blob, weights: Blob) -> Conversion:
    """Blocks until the child has answered. Raises StorageFull."""
    with tempfile.TemporaryDirectory(dir=store.incoming) as folder:
        findings = _ask(_task(store, base, config, weights, folder))
        if any(finding.level == "fail" for finding in findings):
            return Conversion(findings, config, weights)
        made = Path(folder)
        with (made / CONFIG_FILE).open("rb") as new_config, (made / WEIGHTS_FILE).open("rb") as new_weights:
            return Conversion(findings, store.keep(new_config), store.keep(new_weights))


def _ask(task: ConversionTask) -> list[Finding]:
    try:
        answer = ask_child("loraplex.registry.files.conversion_worker", task, SECONDS)
    except ChildFailed as error:
        return [Finding("converted", "fail", str(error), SMALLER)]
    return msgspec.json.decode(answer, type=list[Finding])


def _task(store: ArtifactStore, base: BaseSignature, config: Blob, weights: Blob, folder: str) -> ConversionTask:
    return ConversionTask(
        config=str(store.blob_path(config.sha256)),
        weights=str(store.blob_path(weights.sha256)),
        base=base,
        folder=folder,
        cpu_seconds=SECONDS,
        memory=MEMORY,
        largest=min(MAX_WEIGHTS, shutil.disk_usage(store.root).free // 3),
    )
