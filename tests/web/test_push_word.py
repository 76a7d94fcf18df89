"""`loraplex adapters push` against a server behind a socket: what arrives, what need not be sent, what breaks."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import httpx
import pytest

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.cli.adapters import push_files
from loraplex.web.cli.api_client import ApiClient, Refused
from loraplex.web.server import Server
from loraplex.web.state import State

from .typed import Run, typed


class Proxy(threading.Thread):
    """Forwards connections, of which the first is cut once it has brought `most` bytes."""

    def __init__(self, port: int, most: int) -> None:
        super().__init__(daemon=True)
        self._port, self._most = port, most
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0

    def run(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self.connections += 1
                server = socket.create_connection(("127.0.0.1", self._port))
                most = self._most if self.connections == 1 else 1 << 40
                threading.Thread(target=_forward, args=(server, client, 1 << 40), daemon=True).start()
                threading.Thread(target=_forward, args=(client, server, most), daemon=True).start()

    def close(self) -> None:
        self._listener.close()


def _forward(source: socket.socket, target: socket.socket, most: int) -> None:
    with suppress(OSError):
        while most and (data := source.recv(min(most, 1 << 16))):
            target.sendall(data)
            most -= len(data)
        if not most:
            time.sleep(
                1
            )  # what has come by then is read; a server drops what it has not read of a connection that ends
    for end in (target, source):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def port(state: State) -> Iterator[int]:
    """Of the served app."""
    listener, server = socket.create_server(("127.0.0.1", 0)), Server(state)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    yield int(listener.getsockname()[1])
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], port: int, admin: dict[str, str]) -> Run:
    monkeypatch.setenv("LORAPLEX_SERVER", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("LORAPLEX_KEY", admin["authorization"].removeprefix("Bearer "))
    monkeypatch.setattr(push_files, "PAUSE_SECONDS", 0.05)
    return typed(monkeypatch, capsys)


def test_a_folder_becomes_a_version_and_is_sent_once(run: Run, state: State, adapter_folders: list[Path]) -> None:
    code, out, err = run("adapters", "push", adapter_folders[0], "--name", "support")
    assert (code, err) == (0, ""), err
    assert "support registered as version 1" in out
    code, out, _ = run("adapters", "push", adapter_folders[0], "--name", "support")
    assert code == 0
    assert out.count("already on the server") == 2
    assert "support is already version 1" in out
    version = state.registry.adapters.get("support").versions[0]
    stored = state.registry.store.folder(version.digest)
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        assert (stored / file).read_bytes() == (adapter_folders[0] / file).read_bytes()


def test_json_is_for_programs_and_the_bar_for_people(run: Run, adapter_folders: list[Path]) -> None:
    code, out, err = run("adapters", "push", adapter_folders[0], "--name", "support", "--progress", "--json")
    told = json.loads(out)
    assert (code, told["name"], told["version"], told["created"]) == (0, "support", 1, True)
    assert [(file["file"], file["already_here"]) for file in told["files"]] == [
        (CONFIG_FILE, False),
        (WEIGHTS_FILE, False),
    ]
    assert WEIGHTS_FILE in err
    assert "kB" in err


def test_it_goes_on_where_the_connection_broke(
    run: Run, port: int, adapter_folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = adapter_folders[0] / WEIGHTS_FILE
    proxy = Proxy(port, most=(adapter_folders[0] / CONFIG_FILE).stat().st_size + weights.stat().st_size // 2)
    proxy.start()
    monkeypatch.setenv("LORAPLEX_SERVER", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setattr(push_files, "PAUSE_SECONDS", 1.5)  # for the server to see that the connection is gone
    code, out, err = run("adapters", "push", adapter_folders[0], "--name", "support", "--json")
    proxy.close()
    assert code == 0, err
    assert proxy.connections > 1
    assert 0 < json.loads(out)["files"][1]["begun_at"] < weights.stat().st_size


def test_a_server_that_its_proxy_does_not_reach_is_waited_for(
    run: Run, adapter_folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while it starts again."""
    ask, away = ApiClient.ask, [502, 504, 503]

    def asked(client: ApiClient, method: str, path: str, **request: Any) -> dict[str, Any]:
        if "/files/" in path and away:
            raise Refused(httpx.Response(away.pop(), text="<h1>Bad gateway</h1>"))
        return ask(client, method, path, **request)

    monkeypatch.setattr(ApiClient, "ask", asked)
    code, out, err = run("adapters", "push", adapter_folders[0], "--name", "support")
    assert (code, away) == (0, []) and "support registered as version 1" in out, err


def test_what_fails_its_checks_is_told_with_the_reasons(
    run: Run, state: State, adapter_folders: list[Path], tmp_path: Path
) -> None:
    config = json.loads((adapter_folders[0] / CONFIG_FILE).read_text()) | {"r": 5}
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config))
    (tmp_path / WEIGHTS_FILE).write_bytes((adapter_folders[0] / WEIGHTS_FILE).read_bytes())
    code, out, _ = run("adapters", "push", tmp_path, "--name", "broken")
    assert code == 1
    assert "fail" in out
    assert "broken was not registered" in out
    code, out, _ = run("adapters", "push", tmp_path, "--name", "broken", "--json")
    assert code == 1
    assert any(finding["level"] == "fail" for finding in json.loads(out)["findings"])
    assert not state.registry.adapters.list()


def test_what_is_wrong_is_said_in_words(
    run: Run, adapter_folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = adapter_folders[0]
    assert "adapter_config.json is missing" in run("adapters", "push", tmp_path, "--name", "empty")[2]
    assert "cannot name an adapter" in run("adapters", "push", folder, "--name", "No Name")[2]
    assert "Incorrect API key" in run("adapters", "push", folder, "--name", "a", "--key", "lp-wrong")[2]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(push_files, "PAUSE_SECONDS", inf)  # who was never there is not waited for
    code, _, err = run("adapters", "push", folder, "--name", "a", "--server", nobody)
    assert code == 2
    assert "cannot be reached" in err
    strange = httpx.Response(502, json={"error": "bad gateway"})
    assert str(Refused(strange)) == 'the server answered 502: {"error":"bad gateway"}'
    monkeypatch.delenv("LORAPLEX_KEY")
    assert "LORAPLEX_KEY" in run("adapters", "push", folder, "--name", "a")[2]
