import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from loraplex.registry.certificates.certificate_runs import CertificateRuns
from loraplex.registry.certificates.certificates import Subject
from loraplex.registry.database.database import Database, open_engine, parse_url
from loraplex.registry.database.migrate import FOLDER, drift, head, is_current, is_known, upgrade
from loraplex.registry.database.tables import Table
from loraplex.registry.registry import Registry

from ..helpers import BASE, add
from ..postgres import Postgres

ROOT = Path(__file__).parents[3]


def test_an_empty_database_comes_to_the_head(empty_url: str, tmp_path: Path) -> None:
    assert not is_current(empty_url)
    upgrade(empty_url)
    assert is_current(empty_url)
    registry = Registry.open(empty_url, tmp_path / "artifacts", BASE, free_floor=0)
    assert add(registry, "sql", b"one").created
    registry.close()


def test_a_database_without_an_encoding_keeps_text_as_it_is(postgres: Postgres, tmp_path: Path) -> None:
    """As PostgreSQL makes one where the machine has no language."""
    with postgres.database("template0", "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'") as url:
        upgrade(url)
        registry = Registry.open(url, tmp_path / "artifacts", BASE, free_floor=0)
        registry.keys.create("Zoë 😀", ["inference"], actor="system")
        assert [key.name for key in registry.keys.list()] == ["Zoë 😀"]
        registry.close()


def test_a_look_leaves_no_line_in_the_log(empty_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Readiness is probed every few seconds."""
    caplog.set_level(logging.DEBUG)
    assert not is_current(empty_url)
    assert caplog.messages == []
    upgrade(empty_url)
    caplog.clear()
    assert is_current(empty_url)
    assert caplog.messages == []


def test_migrations_and_tables_agree(database_url: str) -> None:
    assert drift(database_url) == []


def test_drift_is_seen(database_url: str) -> None:
    engine = open_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE users ADD COLUMN surprise INTEGER"))
    engine.dispose()
    assert "surprise" in str(drift(database_url))


def test_upgrading_twice_keeps_the_rows(registry: Registry, database_url: str) -> None:
    add(registry, "sql", b"one")
    upgrade(database_url)
    assert [adapter.name for adapter in registry.adapters.list()] == ["sql"]


def test_who_is_at_the_head_runs_no_migrations_file(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a start nor a probe of readiness, which comes every few seconds."""
    assert is_current(database_url)
    monkeypatch.setattr(ScriptDirectory, "__init__", lambda *given, **named: pytest.fail("alembic reads migrations"))
    upgrade(database_url)
    assert is_current(database_url)


def test_many_processes_may_upgrade_at_once(empty_url: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        processes = list(pool.map(upgrade_in_a_process, [empty_url] * 2))
    assert [process.returncode for process in processes] == [0, 0], processes
    assert is_current(empty_url)


def upgrade_in_a_process(url: str) -> "subprocess.CompletedProcess[str]":
    code = "import sys; from loraplex.registry.database.migrate import upgrade; upgrade(sys.argv[1])"
    environment = {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, "-c", code, url], env=environment, capture_output=True, text=True)


def test_the_way_back_leaves_nothing(empty_url: str) -> None:
    upgrade(empty_url)
    engine = open_engine(empty_url)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(FOLDER))
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert inspect(engine).get_table_names() == ["alembic_version"]
    engine.dispose()


def test_certificates_of_before_are_of_no_settings(registry: Registry, database_url: str) -> None:
    subject = Subject(add(registry, "sql", b"one").version.digest)
    registry.certificates.request(subject, actor="cli")
    engine = open_engine(database_url)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(FOLDER))
        config.attributes["connection"] = connection
        command.downgrade(config, "0015")
        assert "certifiers" not in inspect(connection).get_table_names()
    engine.dispose()
    upgrade(database_url)
    assert drift(database_url) == []
    claim = CertificateRuns(registry.database, serving="here").claim()
    assert claim is not None and claim.subject == subject


def test_a_database_of_a_newer_release_is_refused_in_words(database_url: str) -> None:
    engine = open_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ValueError, match="newer loraplex"):
        upgrade(database_url)
    assert not is_current(database_url)
    engine.dispose()


def test_a_migration_that_fails_leaves_the_database_as_it_was(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic.operations import Operations

    original = Operations.create_table

    def fail_late(self: Operations, name: str, *columns: object, **options: object) -> object:
        if name == "audit":
            raise RuntimeError("the machine died here")
        return original(self, name, *columns, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Operations, "create_table", fail_late)
        with pytest.raises(RuntimeError):
            upgrade(empty_url)
    engine = open_engine(empty_url)
    assert inspect(engine).get_table_names() == []
    engine.dispose()
    upgrade(empty_url)
    assert is_current(empty_url)


def test_alembic_check_passes_from_the_command_line(database_url: str) -> None:
    check = [sys.executable, "-m", "alembic", "-x", f"url={database_url}", "check"]
    done = subprocess.run(check, cwd=ROOT, env={"PYTHONPATH": "src"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_column_holds_a_path() -> None:
    """Only identifiers are stored; the artifact store alone makes paths of them."""
    columns = [column.name for table in Table.metadata.tables.values() for column in table.columns]
    words = ("path", "folder", "file", "uri", "url")
    known = [name.replace("profile", "").replace("file_id", "") for name in columns]
    assert [name for name in known if any(word in name for word in words)] == []


def test_head_is_a_revision_of_the_repository() -> None:
    names = [path.name for path in (ROOT / "migrations" / "versions").glob("*.py")]
    assert all(name[:4].isdigit() for name in names)
    assert any(f'revision = "{head()}"' in path.read_text() for path in (ROOT / "migrations" / "versions").glob("*.py"))


def test_revisions_read_from_the_text_are_those_that_alembic_runs() -> None:
    scripts = ScriptDirectory(str(FOLDER))
    assert [head()] == scripts.get_heads()
    assert all(is_known(script.revision) for script in scripts.walk_revisions())
    assert not is_known("none such")


@pytest.mark.parametrize("url", ["mysql://localhost/x", "sqlite://", "sqlite:///:memory:", "postgresql+asyncpg://h/x"])
def test_other_databases_are_refused_in_words(url: str) -> None:
    with pytest.raises(ValueError, match="Use sqlite:///path/to/file or postgresql://"):
        open_engine(url)


@pytest.mark.parametrize("url", ["postgresql://u:p@h/db", "postgres://u:p@h/db", "postgresql+pg8000://u:p@h/db"])
def test_postgresql_goes_through_psycopg(url: str) -> None:
    assert parse_url(url).render_as_string(hide_password=False) == "postgresql+psycopg://u:p@h/db"


def test_sqlite_is_opened_with_care(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.read() as session:
        pragmas = {
            name: session.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
        }
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 5000, "synchronous": 2}
    database.close()
