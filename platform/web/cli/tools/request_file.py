"""What `run-batch` reads. It is read twice, so what comes through a pipe or standard input is kept for the time."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

STANDARD_INPUT: Final = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


@contextmanager
def requests_of(source: str) -> Iterator[Path]:
    """A plain file with the requests, for the block. ValueError where they cannot be read, or not be kept."""
    if source not in STANDARD_INPUT and Path(source).is_file():
        yield Path(source)
        return
    with ExitStack() as stack:
        try:
            kept = stack.enter_context(tempfile.NamedTemporaryFile(prefix="loraplex-requests-"))
            with open(0 if source == "-" else source, "rb", closefd=source != "-") as file:
                shutil.copyfileobj(file, kept)
            kept.flush()
        except OSError as error:
            where = tempfile.gettempdir()
            raise ValueError(f"the requests of {source} cannot be kept in {where}: {error.strerror}") from None
        yield Path(kept.name)
