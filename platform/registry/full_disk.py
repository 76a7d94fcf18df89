"""full_disk_in_words: what the disk says when it is full, as a refusal."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import StorageFull


@contextmanager
def full_disk_in_words() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull("The server's disk is full. Free space on it, or remove adapters.") from error
        raise
