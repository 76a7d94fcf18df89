import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loraplex.registry.errors import (
    RegistryError,
    StorageFull,
    UploadEmpty,
    UploadMismatch,
    UploadMissing,
    UploadTooLarge,
)
from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE, ArtifactStore
from loraplex.registry.files.incoming import Blob

from ..helpers import HOSTILE_STRINGS, LIMIT, put, sha256

DIGEST = "d" * 64
NO_SHA256 = sorted({*HOSTILE_STRINGS, "A" * 64, "a" * 63, "a" * 64 + "\n", "../" + "a" * 61} - {"a" * 64})


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store", free_floor=0)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_is_visible_only_when_it_is_complete(store: ArtifactStore) -> None:
    data = b"some weights"
    with store.receive(len(data), sha256(data), LIMIT) as incoming:
        incoming.write(data[:5])
        assert store.find(sha256(data)) is None
        incoming.write(data[5:])
        blob = incoming.finish()
    assert store.find(sha256(data)) == blob == Blob(sha256(data), len(data))
    assert store.blob_path(blob.sha256).read_bytes() == data
    assert files_in(store.incoming) == []


def test_an_open_file_is_copied_once(store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"some weights")
    with path.open("rb") as file:
        blob = store.keep(file)
        assert blob == Blob(sha256(b"some weights"), 12)
        assert store.blob_path(blob.sha256).read_bytes() == b"some weights"
        file.seek(0)
        monkeypatch.setattr(store, "receive", None)
        assert store.keep(file) == blob


@pytest.mark.parametrize(
    ("sent", "size", "digest_of", "error"),
    [
        (b"12345", 4, b"12345", UploadTooLarge),
        (b"123", 4, b"123", UploadMismatch),
        (b"1234", 4, b"4321", UploadMismatch),
        (b"", 0, b"", UploadEmpty),
        (b"", -1, b"", UploadEmpty),
        (b"", LIMIT + 1, b"", UploadTooLarge),
    ],
)
def test_a_wrong_declaration_leaves_nothing(
    store: ArtifactStore, sent: bytes, size: int, digest_of: bytes, error: type[RegistryError]
) -> None:
    def upload() -> None:
        with store.receive(size, sha256(digest_of), LIMIT) as incoming:
            incoming.write(sent)
            incoming.finish()

    with pytest.raises(error):
        upload()
    assert files_in(store.incoming) == files_in(store.blobs) == []


def test_bytes_beyond_the_declared_size_never_reach_the_disk(store: ArtifactStore) -> None:
    with store.receive(10, "0" * 64, LIMIT) as incoming:
        incoming.write(b"x" * 10)
        with pytest.raises(UploadTooLarge):
            incoming.write(b"x")
        assert incoming.received == 10
        assert [path.stat().st_size for path in store.incoming.iterdir()] == [10]


@pytest.mark.parametrize("text", NO_SHA256)
def test_only_64_hex_digits_become_a_path(store: ArtifactStore, text: str) -> None:
    for make_path in (store.blob_path, store.folder, store.find):
        with pytest.raises(UploadMismatch, match="is not a SHA-256"):
            make_path(text)
    with pytest.raises(UploadMismatch):
        store.receive(1, text, LIMIT)
    assert files_in(store.incoming) == []


def test_the_free_disk_floor_is_kept(tmp_path: Path) -> None:
    with pytest.raises(StorageFull, match="must stay free"):
        ArtifactStore(tmp_path, free_floor=1 << 62).receive(1, "0" * 64, LIMIT)


def test_the_adapter_folder_holds_both_files_without_a_copy(store: ArtifactStore) -> None:
    config, weights = put(store, b"{}"), put(store, b"weights")
    store.publish(DIGEST, config, weights)
    assert files_in(store.folder(DIGEST)) == [CONFIG_FILE, WEIGHTS_FILE]
    assert (store.folder(DIGEST) / WEIGHTS_FILE).samefile(store.blob_path(weights.sha256))
    assert store.problem(DIGEST, config.size, weights.size) is None


def test_publishing_repairs_a_damaged_folder(store: ArtifactStore) -> None:
    config, weights = put(store, b"{}"), put(store, b"weights")
    store.publish(DIGEST, config, weights)
    (store.folder(DIGEST) / CONFIG_FILE).unlink()
    assert store.problem(DIGEST, config.size, weights.size) == f"{CONFIG_FILE} is missing from the artifact store"
    store.publish(DIGEST, config, weights)
    assert store.problem(DIGEST, config.size, weights.size) is None
    assert files_in(store.incoming) == []


def test_publishing_what_was_not_uploaded_says_so(store: ArtifactStore) -> None:
    with pytest.raises(UploadMissing, match="Upload it, then register again"):
        store.publish(DIGEST, put(store, b"{}"), Blob("0" * 64, 3))
    assert not store.folder(DIGEST).exists()


def test_an_upload_of_the_same_bytes_does_not_hide_them(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux denies a link to a file that a rename replaces at that moment, as if there were none."""
    config, weights = put(store, b"{}"), put(store, b"weights")
    link, denied = os.link, [True]

    def link_beside_an_upload(source: Path, target: Path) -> None:
        if denied:
            denied.clear()
            raise FileNotFoundError(errno.ENOENT, "replaced", source)
        link(source, target)

    monkeypatch.setattr(os, "link", link_beside_an_upload)
    store.publish("d" * 64, config, weights)
    assert not denied
    assert (store.folder("d" * 64) / WEIGHTS_FILE).read_bytes() == b"weights"


def test_bytes_are_durable_before_they_are_visible(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    record_calls(monkeypatch, events)
    config, weights = put(store, b"{}"), put(store, b"weights")
    assert events == ["write", "fsync file", "rename", "fsync folder"] * 2
    events.clear()
    store.publish(DIGEST, config, weights)
    assert events == ["link", "link", "fsync folder", "rename", "fsync folder"]


def record_calls(monkeypatch: pytest.MonkeyPatch, events: list[str]) -> None:
    def recorded(name: str) -> None:
        original: Callable[..., Any] = getattr(os, name)

        def call(*arguments: Any, **named: Any) -> Any:
            is_folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{arguments[0]}")  # noqa: PTH112
            events.append(f"fsync {'folder' if is_folder else 'file'}" if name == "fsync" else name)
            return original(*arguments, **named)

        monkeypatch.setattr(os, name, call)

    for name in ("write", "fsync", "rename", "link"):
        recorded(name)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("failing", range(13))
def test_a_failing_disk_leaves_no_half_visible_adapter(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, failing: int, number: int
) -> None:
    """The operations of an upload and its publication, failing one after the other: 4 + 4 + 5."""
    with monkeypatch.context() as patch:
        fail_call(patch, failing, number)
        with pytest.raises((StorageFull, OSError)):
            store.publish(DIGEST, put(store, b"{}"), put(store, b"weights"))
    complete = store.problem(DIGEST, 2, 7) is None
    assert complete or not store.folder(DIGEST).exists()
    for blob in store.blobs.iterdir():
        assert sha256(blob.read_bytes()) == blob.name
    store.publish(DIGEST, put(store, b"{}"), put(store, b"weights"))
    assert store.problem(DIGEST, 2, 7) is None


def fail_call(monkeypatch: pytest.MonkeyPatch, failing: int, number: int) -> None:
    calls = 0

    def failing_call(name: str) -> None:
        original: Callable[..., Any] = getattr(os, name)

        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == failing + 1:
                raise OSError(number, os.strerror(number))
            return original(*arguments, **named)

        monkeypatch.setattr(os, name, call)

    for name in ("write", "fsync", "rename", "link"):
        failing_call(name)
