"""A disk that fills up at any operation of an upload: the client is told what is the matter."""

import errno
from pathlib import Path

import pytest

from loraplex.registry.errors import StorageFull
from loraplex.registry.files.artifacts import ArtifactStore
from tests.registry.files.test_artifacts import fail_call
from tests.registry.helpers import put, sha256

OPERATIONS = 13
"""Write, sync, rename and sync for each of the two files; link them, sync, rename and sync."""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("failing", range(OPERATIONS))
def test_a_full_disk_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, number: int) -> None:
    store = ArtifactStore(tmp_path, free_floor=0)
    with monkeypatch.context() as patch:
        fail_call(patch, failing, number)
        with pytest.raises(StorageFull, match="Free up disk space"):
            store.publish(sha256(b"an adapter"), put(store, b"{}"), put(store, b"weights"))
