"""A private PostgreSQL for the tests: in a temporary folder, on 127.0.0.1, gone afterwards."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from loraplex.registry.database.database import open_engine
from loraplex.registry.database.migrate import upgrade

TEMPLATE = "loraplex_template"
PASSWORD = "sesame"


class Postgres:
    """Hands out databases at the head; `url` names any database of a server where we may create some."""

    def __init__(self, url: str) -> None:
        self._url, self._numbers = url, count()
        self._execute(f"DROP DATABASE IF EXISTS {TEMPLATE} WITH (FORCE)", f"CREATE DATABASE {TEMPLATE}")
        upgrade(self._url_of(TEMPLATE))

    @contextmanager
    def database(self, template: str = TEMPLATE, options: str = "") -> Iterator[str]:
        """The URL of a fresh copy of `template` (template0: empty). `options`: further ones of CREATE DATABASE."""
        name = f"loraplex_test_{os.getpid()}_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template} {options}")
        yield self._url_of(name)
        self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _url_of(self, name: str) -> str:
        return make_url(self._url).set(database=name).render_as_string(hide_password=False)

    def _execute(self, *statements: str) -> None:
        engine = open_engine(self._url, patient=True).execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        engine.dispose()


def find_binaries() -> Path | None:
    """Debian keeps them per major version, outside PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


def find_program(name: str) -> str:
    """One of its programs for clients, which may lie elsewhere than those of the server."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = next((str(folder / name) for folder in folders if (folder / name).exists()), None) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed: it comes with Debian's postgresql")
    return found


@contextmanager
def private_server(binaries: Path, tls: bool = False) -> Iterator[str]:
    """The URL of a server that lives as long as the block. `tls`: it has a certificate and asks for a password."""
    folder = Path(tempfile.mkdtemp(prefix="loraplex-postgres-"))
    user = _unprivileged_user(folder)
    data, port = folder / "data", _free_port()
    initdb: list[str | Path] = [
        binaries / "initdb",
        f"--pgdata={data}",
        "--username=loraplex",
        f"--auth={'scram-sha-256' if tls else 'trust'}",
        f"--pwfile={_password_file(folder, user)}",
        "-E",
        "UTF8",
        "--no-sync",
    ]
    subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **user)
    options = [
        f"-cport={port}",
        "-clisten_addresses=127.0.0.1",
        "-cunix_socket_directories=",
        "-cfsync=off",
        "-clc_messages=C",
    ]
    if tls:
        options += _make_certificate(folder, user)
    log = (folder / "log").open("wb")
    server = subprocess.Popen([binaries / "postgres", "-D", data, *options], cwd=folder, stdout=log, stderr=log, **user)
    try:
        _wait_for(server, folder / "log")
        address = f"postgresql://loraplex:{PASSWORD}@127.0.0.1:{port}/postgres"
        yield f"{address}?sslmode=verify-full&sslrootcert={folder / 'server.crt'}" if tls else address
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder)


def _password_file(folder: Path, user: dict[str, Any]) -> Path:
    file = folder / "password"
    file.write_text(PASSWORD)
    if user:
        shutil.chown(file, user["user"])
    return file


def _make_certificate(folder: Path, user: dict[str, Any]) -> list[str]:
    """A certificate for 127.0.0.1 that signs itself, as options of the server."""
    certificate, key = folder / "server.crt", folder / "server.key"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=loraplex-test"]
    request += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(request, check=True, capture_output=True, cwd=folder, **user)
    return ["-cssl=on", f"-cssl_cert_file={certificate}", f"-cssl_key_file={key}"]


def _unprivileged_user(folder: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    shutil.chown(folder, "postgres")
    return {"user": "postgres", "group": "postgres", "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_for(server: "subprocess.Popen[bytes]", log: Path) -> None:
    """Its port is open before it answers."""
    deadline = time.monotonic() + 60
    while "ready to accept connections" not in log.read_text():
        assert server.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
