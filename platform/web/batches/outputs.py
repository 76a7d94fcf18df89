"""Output and error file of a batch that ends: made of its journal, and of the lines that had no time."""

import hashlib
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import datetime
from typing import Final

from loraplex.registry.batches.batches import OutputFile
from loraplex.registry.batches.files import FileWriter
from loraplex.registry.batches.journal import Journal
from loraplex.registry.batches.views import Batch
from loraplex.registry.files.artifacts import ArtifactStore

from .answers import BatchError
from .line_runner import refused_line
from .lines import Line

EXPIRED: Final = BatchError("batch_expired", "This request could not be executed before the completion window expired.")


class Outputs:
    """Their names follow from the batch's: a process that begins anew replaces them."""

    def __init__(self, store: ArtifactStore, batch: Batch, expires_at: datetime) -> None:
        self._store, self._batch, self._expires_at = store, batch, expires_at

    def write(self, journal: Journal, unrun: Iterable[Line]) -> tuple[OutputFile | None, OutputFile | None, int]:
        """Output and error file, where they have a line, and how many of `unrun` there were. Blocks. Raises
        StorageFull."""
        with ExitStack() as stack:
            output, error = (stack.enter_context(FileWriter(self._store)) for _ in range(2))
            for record in journal.records():
                (output if record.succeeded else error).write(bytes(record.result) + b"\n")
            count = 0
            for line in unrun:
                count += 1
                request_id = f"batch_req_{uuid.uuid4().hex}"
                error.write(bytes(refused_line(request_id, line, EXPIRED)) + b"\n")
            return self._kept(output, "output"), self._kept(error, "error"), count

    def _kept(self, writer: FileWriter, kind: str) -> OutputFile | None:
        if writer.size == 0:
            return None
        id = f"file-{hashlib.sha256(f'{self._batch.id}:{kind}'.encode()).hexdigest()[:24]}"
        writer.keep(id)
        return OutputFile(id, f"{self._batch.id}_{kind}.jsonl", writer.size, self._expires_at)
