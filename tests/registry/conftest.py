"""Every test of the registry that takes `database_url` or `registry` runs on SQLite and on PostgreSQL.

PostgreSQL is the server of LORAPLEX_TEST_POSTGRES_URL (its user may create databases), or a private one.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from loraplex.registry.database.migrate import upgrade
from loraplex.registry.registry import Registry
from tests.statements_once import write_statements_once

from .helpers import BASE
from .postgres import Postgres, find_binaries, private_server


@pytest.fixture(scope="session", autouse=True)
def statements_written_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        write_statements_once(patch)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    url, binaries = os.environ.get("LORAPLEX_TEST_POSTGRES_URL"), find_binaries()
    if url:
        yield Postgres(url)
    elif binaries:
        with private_server(binaries) as private_url:
            yield Postgres(private_url)
    else:
        pytest.skip("no PostgreSQL: install Debian's postgresql, or set LORAPLEX_TEST_POSTGRES_URL")


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "registry.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'registry.db')}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database at the head."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
    else:
        with request.getfixturevalue("postgres").database() as url:
            yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without a table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'new folder' / 'registry.db'}"
    else:
        with request.getfixturevalue("postgres").database("template0") as url:
            yield url


@pytest.fixture
def registry(database_url: str, tmp_path: Path) -> Iterator[Registry]:
    opened = Registry.open(database_url, tmp_path / "artifacts", BASE, free_floor=0)
    yield opened
    opened.close()
