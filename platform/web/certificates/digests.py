"""ModelDigests: of model folders, to the last byte. Read in the background, and remembered while no file changes."""

import json
import logging
import os
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final

from loraplex.engine.model.identity.digest import files_state, model_digest

FILE: Final = "model_digests.json"
"""In the data folder; it can be deleted at any time."""

logger = logging.getLogger(__name__)


class ModelDigests:
    def __init__(self, data_dir: Path, patience_seconds: float | None = None) -> None:
        """`patience_seconds`: that whoever asks waits while files are read; None: until they are."""
        self._file, self._patience_seconds = data_dir / FILE, patience_seconds
        self._lock = Lock()
        self._runs: dict[tuple[Path, str], Future[str]] = {}

    def begin(self, folder: Path) -> None:
        """Have the digest taken, unless it is known. ValueError where a file cannot be looked at."""
        self._run(folder)

    def of(self, folder: Path) -> str:
        """`model_digest` of the files as they are now. ValueError says why there is none, or none yet."""
        try:
            return self._run(folder).result(self._patience_seconds)
        except TimeoutError:
            raise ValueError(
                f"the files in {folder} are still being hashed for certificates. Try again in a moment."
            ) from None
        except OSError as error:
            raise ValueError(f"the model in {folder} cannot be read: {error.strerror}") from error

    def _run(self, folder: Path) -> Future[str]:
        """The one that reads, or has read, the files in their present state."""
        try:
            state = files_state(folder)
        except OSError as error:
            raise ValueError(f"the model in {folder} cannot be read: {error.strerror}") from error
        with self._lock:
            run = self._runs.get((folder, state))
            if run is None or (run.done() and run.exception() is not None):
                run = self._runs[folder, state] = Future()
                Thread(target=self._read, args=(folder, state, run), name="model-digest", daemon=True).start()
            return run

    def _read(self, folder: Path, state: str, run: Future[str]) -> None:
        try:
            run.set_result(self._remembered(folder, state) or self._taken(folder, state))
        except Exception as error:
            run.set_exception(error)

    def _taken(self, folder: Path, state: str) -> str:
        digest = model_digest(folder)
        if files_state(folder) != state:
            raise ValueError(f"the files in {folder} changed while they were read. Try again in a moment.")
        self._remember(folder, state, digest)
        return digest

    def _remembered(self, folder: Path, state: str) -> str | None:
        match self._all_remembered().get(str(folder)):
            case {"state": known, "digest": str() as digest} if known == state:
                return digest
        return None

    def _remember(self, folder: Path, state: str, digest: str) -> None:
        """Of folders that are there. What cannot be written is read again at the next start."""
        with self._lock:
            kept = {name: entry for name, entry in self._all_remembered().items() if Path(name).is_dir()}
            kept[str(folder)] = {"state": state, "digest": digest}
            unfinished = self._file.with_name(f".{FILE}.{os.getpid()}")
            try:
                unfinished.write_text(json.dumps(kept))
                unfinished.replace(self._file)
            except OSError as error:
                logger.warning("the digest of %s is not remembered: %s", folder, error)
                with suppress(OSError):
                    unfinished.unlink(missing_ok=True)

    def _all_remembered(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
