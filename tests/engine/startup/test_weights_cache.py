"""The folder of kept weights: only its own entries leave, whole, and only where room is needed."""

import os
import shutil
import time
from pathlib import Path

import pytest

from loraplex.engine.startup.weights_cache import LOCK, SPARE_BYTES, WeightsCache, entry_name

from ..disk import fill_disk

SIZE = 1000


def put(cache: WeightsCache, name: str, used: int) -> Path:
    """An entry of SIZE bytes, last used so many seconds after 1970: a folder for awq."""
    path = cache.path(name)
    if name.startswith("awq"):
        path.mkdir()
        (path / "config.json").write_bytes(bytes(SIZE // 2))
        (path / "model.safetensors").write_bytes(bytes(SIZE // 2))
    else:
        path.write_bytes(bytes(SIZE))
    os.utime(path, (used, used))
    return path


def three(cache: WeightsCache) -> list[Path]:
    """The longest unused first."""
    return [
        put(cache, entry_name("awq", "old"), 1),
        put(cache, entry_name("packed", "newer"), 2),
        put(cache, entry_name("awq", "newest"), 3),
    ]


def test_only_its_own_entries_are_counted_and_removed(tmp_path: Path) -> None:
    cache = WeightsCache(tmp_path, 0)
    name = entry_name("awq", "own")
    others = [tmp_path / other for other in (".git", "awq-model", ".awq-model", f"{name}-copy", f"a{name}")]
    for other in others:
        other.mkdir()
        (other / "precious").write_bytes(bytes(5 * SIZE))
    for file in ("notes.txt", ".env", "packed-lunch"):
        (tmp_path / file).touch()
    foreign = {path.name for path in tmp_path.iterdir()}
    put(cache, name, 1)
    cache.unfinished(entry_name("packed", "half")).touch()
    tmp_path.joinpath(f".{name}.x1y2").mkdir()
    with cache.turn(wait=False):
        assert {path.name for path in tmp_path.iterdir()} == foreign | {name}
        cache.trim()
    assert {path.name for path in tmp_path.iterdir()} == foreign
    assert all((other / "precious").stat().st_size == 5 * SIZE for other in others)
    kept = put(cache, name, 1)
    WeightsCache(tmp_path, SIZE).trim()
    assert kept.exists() and LOCK in foreign


def test_an_interrupted_removal_leaves_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = WeightsCache(tmp_path, 0)
    path = put(cache, entry_name("awq", "old"), 1)

    def interrupted(folder: Path, ignore_errors: bool) -> None:
        (folder / "model.safetensors").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), cache.turn(wait=False):
        cache.trim()
    monkeypatch.undo()
    assert cache.use(path.name) is None
    assert [left.name for left in tmp_path.iterdir() if left.name != LOCK] == [f".{path.name}"]
    with cache.turn(wait=False):
        assert [left.name for left in tmp_path.iterdir()] == [LOCK]


def test_the_longest_unused_make_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = WeightsCache(tmp_path, 1 << 30)
    oldest, newer, newest = three(cache)
    assert cache.use(newer.name) == newer
    fill_disk(monkeypatch, tmp_path, SPARE_BYTES + 3 * SIZE)
    with cache.turn(wait=False):
        assert cache.make_room(0) and oldest.exists()
        assert not cache.make_room(2 * SIZE + 1) and oldest.exists()  # all of it would not do
        assert cache.make_room(SIZE)
        assert not oldest.exists() and newest.exists()
        assert cache.make_room(2 * SIZE)
    assert not newest.exists() and newer.exists()


def test_what_another_process_uses_stays_until_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = WeightsCache(tmp_path, SIZE), WeightsCache(tmp_path, SIZE)
    oldest, newer, newest = three(mine)
    for path in (oldest, newest):
        assert theirs.use(path.name) == path
    with mine.turn(wait=False):
        mine.trim()
        assert oldest.exists() and not newer.exists() and newest.exists()
        fill_disk(monkeypatch, tmp_path, SPARE_BYTES + 2 * SIZE)
        assert not mine.make_room(1) and oldest.exists() and newest.exists()
        del theirs
        # A process that another test's thread is about to start may hold its locks for a moment more.
        deadline = time.monotonic() + 60
        while oldest.exists() and time.monotonic() < deadline:
            mine.trim()
        assert not oldest.exists() and newest.exists(), "the limit has room for one"


def test_what_cannot_be_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = WeightsCache(tmp_path, 0)
    paths = three(cache)

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "rename", refuse)
    cache.trim()
    fill_disk(monkeypatch, tmp_path, SPARE_BYTES)
    assert not cache.make_room(0)
    assert all(path.exists() for path in paths)
    assert caplog.text.count("cannot be removed") == 6


def test_what_cannot_be_touched_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = WeightsCache(tmp_path, 0)
    path = put(cache, entry_name("packed", "another user's"), 1)

    def refuse(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refuse)
    assert cache.use(path.name) == path
    cache.trim()
    assert path.exists()
    assert cache.use(entry_name("packed", "none")) is None


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    def number() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = number()
    caches = [WeightsCache(tmp_path, 0) for _ in range(5)]
    assert number() == before and caches
