"""A backup of a server that runs, and another server from it."""

import io
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from loraplex.registry.audit import SYSTEM
from loraplex.registry.registry import Registry
from loraplex.web.backup import restore_backup, write_backup
from loraplex.web.cli.tools.backup import backup, restore
from loraplex.web.management.registration import add_from_folder
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State
from tests.integration.live_server import environment

from ...conftest import ADMIN_PASSWORD, KEY, make_settings


def test_another_server_from_a_backup(state: State, adapter_folders: list[Path], tmp_path: Path) -> None:
    added, _ = add_from_folder(state.registry, state.base, "kept", adapter_folders[0], actor=SYSTEM)
    made = added.version.digest
    (state.settings.data_dir / "weights").mkdir()
    (state.settings.data_dir / "weights" / "packed").write_bytes(bytes(1000))
    file = io.BytesIO()
    names = write_backup(state.settings, file)
    assert {"loraplex.db", "credentials.json", f"artifacts/adapters/{made}/adapter_config.json"} <= set(names)
    assert not [name for name in names if "weights/" in name], "packed weights are made again"
    file.seek(0)
    settings = make_settings(tmp_path / "other", state.model_folder)
    assert restore_backup(settings, file) == names
    registry = Registry.open(settings.database, settings.data_dir / "artifacts", state.base)
    try:
        registry.snapshots.refresh()
        assert [version.digest for _, version in registry.snapshots.current.servable()] == [made]
        assert registry.snapshots.current.authenticate(KEY).scopes == {"inference"}
        assert registry.users.verify("admin", ADMIN_PASSWORD)
    finally:
        registry.close()
    links = {path.stat().st_ino for path in (settings.data_dir / "artifacts").rglob("adapter_*")}
    blobs = {path.stat().st_ino for path in (settings.data_dir / "artifacts" / "blobs").iterdir()}
    assert links <= blobs, "hard links stay links"


def test_a_folder_that_is_not_empty_is_left_alone(first_data: Path, checkpoint: Path) -> None:
    settings = make_settings(first_data, checkpoint)
    before = (first_data / "loraplex.db").read_bytes()
    with pytest.raises(ValueError, match=r"already contains loraplex\.db"):
        restore_backup(settings, io.BytesIO())
    assert (first_data / "loraplex.db").read_bytes() == before


def link(kind: bytes, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo("artifacts/blobs/link")
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "hostile",
    [
        tarfile.TarInfo("../escaped"),
        tarfile.TarInfo("/tmp/escaped"),
        tarfile.TarInfo("artifacts/blobs/../../../escaped"),
        link(tarfile.LNKTYPE, "artifacts/blobs/../../../secret"),
        link(tarfile.LNKTYPE, "/etc/passwd"),
        link(tarfile.SYMTYPE, "/etc/passwd"),
        link(tarfile.FIFOTYPE, ""),
    ],
)
def test_nothing_is_unpacked_outside(tmp_path: Path, hostile: tarfile.TarInfo) -> None:
    (tmp_path / "secret").touch()
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w|") as tar:
        tar.addfile(hostile)
    file.seek(0)
    settings = Settings(data_dir=tmp_path / "data")
    with pytest.raises(ValueError, match="not a complete backup"):
        restore_backup(settings, file)
    assert not (tmp_path / "escaped").exists()
    assert not [path for path in settings.data_dir.rglob("*") if not path.is_dir()]


@pytest.mark.parametrize("data", [b"", b"not a tar" * 100])
def test_what_is_no_backup_is_said(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match="not a complete backup"):
        restore_backup(Settings(data_dir=tmp_path / "data"), io.BytesIO(data))


def test_the_words(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LORAPLEX_DATA_DIR", str(settings.data_dir))
    file = tmp_path / "backup.tar"
    backup(str(file))
    assert file.stat().st_mode & 0o077 == 0, "it holds secrets"
    assert "They contain all secrets" in capsys.readouterr().err
    with pytest.raises(ValueError, match="Name another file"):
        backup(str(file))
    monkeypatch.setenv("LORAPLEX_DATA_DIR", str(tmp_path / "other"))
    restore(str(file))
    with sqlite3.connect(tmp_path / "other" / "loraplex.db") as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    monkeypatch.setenv("LORAPLEX_DATABASE_URL", "postgresql://me@127.0.0.1:9/x")
    backup(str(tmp_path / "files.tar"))
    assert "pg_dump" in capsys.readouterr().err
    with tarfile.open(tmp_path / "files.tar") as tar:
        assert "loraplex.db" not in tar.getnames() and "credentials.json" in tar.getnames()


def test_a_backup_streams_through_standard_output(settings: Settings) -> None:
    """As `docker compose exec` passes it on: nothing but the tar, and not seekable."""
    command = [sys.executable, "-m", "loraplex", "backup", "-"]
    ended = subprocess.run(
        command, env=environment({"data_dir": settings.data_dir}), capture_output=True, timeout=120, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(ended.stdout)) as tar:
        assert {"loraplex.db", "credentials.json"} <= set(tar.getnames())
