"""The lines of docs/deploy.md that save and bring back, as they stand there: PostgreSQL's own programs, and SQLite."""

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from loraplex.registry.database.migrate import upgrade
from loraplex.registry.files.artifacts import WEIGHTS_FILE
from loraplex.registry.registry import Registry
from loraplex.web.backup import restore_backup, write_backup
from loraplex.web.settings.settings import Settings
from tests.registry.helpers import BASE, add, snapshot
from tests.registry.postgres import PASSWORD, find_binaries, find_program, private_server

from .dockerfile import ROOT

PAGE = (ROOT / "docs" / "deploy.md").read_text()
WEIGHTS = b"weights of the adapter that is kept"


@pytest.fixture
def database() -> Iterator[str]:
    """A new database `loraplex`, as the service of docker-compose.yml makes one."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL: install Debian's postgresql")
    with private_server(binaries) as url:
        create = [find_program("createdb"), f"--maintenance-db={url}", "loraplex"]
        subprocess.run(create, check=True, capture_output=True)
        yield make_url(url).set(database="loraplex").render_as_string(hide_password=False)


def words_in_service(program: str) -> list[str]:
    """What the page has the service `postgres` run, without where it reads or writes."""
    [found] = re.findall(rf"docker compose exec -T postgres ({program} [^<>\n]+) [<>]", PAGE)
    return shlex.split(found)


def run_in_service(url: str, words: list[str], read: bytes = b"") -> bytes:
    """In the container the program finds the server on its socket; here it is told by the environment where it is."""
    address = make_url(url)
    where = {"PGHOST": str(address.host), "PGPORT": str(address.port), "PGPASSWORD": str(address.password)}
    command = [find_program(words[0]), *words[1:]]
    ended = subprocess.run(command, input=read, capture_output=True, env=os.environ | where)
    assert (ended.returncode, ended.stderr) == (0, b""), ended.stderr.decode()
    return ended.stdout


def opened(folder: Path, url: str) -> Registry:
    """As a start opens it."""
    upgrade(url)
    return Registry.open(url, folder / "artifacts", BASE, free_floor=0)


def keep_something(registry: Registry) -> tuple[str, str]:
    """The digest of an adapter with an alias, and a key."""
    digest = add(registry, "kept", WEIGHTS).version.digest
    return digest, registry.keys.create("before", ["inference"], actor="cli").token


def assert_is_back(registry: Registry, digest: str, key: str) -> None:
    view = snapshot(registry)
    assert [version.digest for _, version in view.servable()] == [digest]
    assert view.authenticate(key).name == "before"
    assert [one.name for one in registry.keys.list()] == ["before"]
    assert (registry.store.folder(digest) / WEIGHTS_FILE).read_bytes() == WEIGHTS
    assert registry.audit.verify().problem is None


@pytest.mark.parametrize("into", ["the server that went on", "a new server"])
def test_postgresql_with_its_own_programs(database: str, tmp_path: Path, into: str) -> None:
    folder, other = tmp_path / "data", tmp_path / "restored"
    without_password = database.replace(f":{PASSWORD}@", "@")
    with closing(opened(folder, database)) as registry:
        digest, key = keep_something(registry)
        dump = run_in_service(database, words_in_service("pg_dump"))
        with (tmp_path / "files.tar").open("wb") as file:
            write_backup(Settings(data_dir=folder, database_url=without_password), file)
        add(registry, "later", b"weights that came after the backup")
        registry.keys.create("later", ["admin"], actor="cli")
        registry.adapters.remove("kept", actor="cli")
    if into == "a new server":
        for program in ("dropdb", "createdb"):
            run_in_service(database, [program, "--username=loraplex", "--maintenance-db=postgres", "loraplex"])
    run_in_service(database, words_in_service("pg_restore"), dump)
    with (tmp_path / "files.tar").open("rb") as file:
        restore_backup(Settings(data_dir=other, database_url=without_password), file)
    with closing(opened(other, database)) as registry:
        assert_is_back(registry, digest, key)
        add(registry, "again", b"numbers go on behind those that came back")


def test_sqlite_with_its_own_word(tmp_path: Path) -> None:
    """Beside a connection that is open and whose newest rows are in the log alone."""
    [statement] = re.findall(r'sqlite3 \.data/loraplex\.db "(VACUUM INTO \'copy\.db\')"', PAGE)
    folder, other = tmp_path / "data", tmp_path / "restored"
    folder.mkdir()
    with closing(opened(folder, f"sqlite:///{folder}/loraplex.db")) as registry:
        digest, key = keep_something(registry)
        assert (folder / "loraplex.db-wal").stat().st_size > 0
        with closing(sqlite3.connect(folder / "loraplex.db")) as connection:
            connection.execute(statement.replace("copy.db", str(tmp_path / "copy.db")))
    other.mkdir()
    shutil.copy(tmp_path / "copy.db", other / "loraplex.db")
    shutil.copytree(folder / "artifacts", other / "artifacts")
    with closing(opened(other, f"sqlite:///{other}/loraplex.db")) as registry:
        assert_is_back(registry, digest, key)
