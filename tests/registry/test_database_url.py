"""URLs as clouds hand them out, against a real server with TLS where one can be started."""

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from loraplex.registry.database.database import open_engine, parse_url
from loraplex.web.http.database_errors import is_away

from .postgres import find_binaries, private_server

ADDRESS = "postgresql://me:sesame@db.example/loraplex"


@pytest.fixture(scope="module")
def verified() -> Iterator[str]:
    """A server's URL with sslmode=verify-full and its certificate."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL: install Debian's postgresql")
    with private_server(binaries, tls=True) as url:
        yield url


def uses_tls(url: str) -> bool:
    engine = open_engine(url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").scalar_one()
    engine.dispose()
    return bool(found)


def change(url: str, **query: str) -> str:
    return make_url(url).set(query=query).render_as_string(hide_password=False)


def test_modes_of_tls(verified: str) -> None:
    root = str(make_url(verified).query["sslrootcert"])
    assert uses_tls(verified)
    assert uses_tls(change(verified, sslmode="require"))
    assert uses_tls(change(verified, sslmode="verify-ca", sslrootcert=root))
    assert uses_tls(change(verified, sslmode="require", channel_binding="require"))
    assert not uses_tls(change(verified, sslmode="disable"))
    assert uses_tls(change(verified)) and uses_tls(change(verified, sslmode="prefer"))


def test_a_certificate_that_cannot_be_verified_is_refused(verified: str) -> None:
    root = str(make_url(verified).query["sslrootcert"])
    with pytest.raises(OperationalError, match="certificate verify failed"):
        uses_tls(change(verified, sslmode="verify-full", sslrootcert="system"))
    elsewhere = change(verified, sslmode="verify-full", sslrootcert=root).replace("127.0.0.1", "localhost")
    with pytest.raises(OperationalError, match='does not match host name "localhost"'):
        uses_tls(elsewhere)
    assert uses_tls(elsewhere.replace("verify-full", "verify-ca"))


def test_the_machines_own_authorities_are_asked(verified: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(os.environ["SSL_CERT_DIR"]).is_dir(), "psycopg's own folder is on no machine"
    root = Path(str(make_url(verified).query["sslrootcert"]))
    command = ["openssl", "x509", "-noout", "-hash", "-in", root]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    (tmp_path / f"{name}.0").symlink_to(root)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert uses_tls(change(verified, sslmode="verify-full"))


def test_a_login_that_is_not_bound_to_its_channel_is_refused(verified: str) -> None:
    with pytest.raises(OperationalError, match="channel binding required"):
        uses_tls(change(verified, sslmode="disable", channel_binding="require"))


def test_session_options(verified: str) -> None:
    engine = open_engine(change(verified, application_name="prod", options="-c statement_timeout=1234"))
    with engine.connect() as connection:
        shown = [
            connection.exec_driver_sql(f"SHOW {name}").scalar_one()
            for name in ("application_name", "statement_timeout")
        ]
    engine.dispose()
    assert shown == ["prod", "1234ms"]


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg", "postgresql+pg8000"])
def test_every_usual_prefix(scheme: str) -> None:
    assert parse_url(ADDRESS.replace("postgresql", scheme)).drivername == "postgresql+psycopg"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"{ADDRESS}?sslmod=require", "option 'sslmod', which is not supported. Use sslmode,"),
        (f"{ADDRESS}?sslmode=allow", "sslmode=allow, which is not supported. Use disable, prefer,"),
        (f"{ADDRESS}?sslmode=verify-full&sslrootcert=/no/such.pem", "cannot be read (sslrootcert=/no/such.pem)"),
        (f"{ADDRESS}?channel_binding=disable", "channel_binding=disable"),
        ("mysql://me:sesame@db/loraplex", "'mysql' is not supported"),
        ("somewhere", "not a database URL"),
    ],
)
def test_what_is_not_supported_is_said_without_the_password(url: str, words: str) -> None:
    with pytest.raises(ValueError) as refused:
        open_engine(url)
    assert words in str(refused.value) and "sesame" not in str(refused.value)


def test_a_server_that_goes_away_in_the_greeting_is_away() -> None:
    def hang_up(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.recv(8)
        connection.close()  # with a reset

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(hang_up, listener)
        engine = open_engine(f"postgresql://a:b@127.0.0.1:{listener.getsockname()[1]}/c")
        with pytest.raises(OperationalError, match="server closed the connection unexpectedly") as raised:
            engine.connect()
        assert is_away(raised.value)
        ended.result()
