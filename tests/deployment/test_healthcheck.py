"""The image's health check against a server in each state."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from deploy import healthcheck

READY = (200, b'{"ready": true, "reasons": []}')
RESTARTING = (503, b'{"ready": false, "reasons": ["the engine is restarting"]}')
OTHER_PROGRAM = (404, b"<html>")


class Handler(http.server.BaseHTTPRequestHandler):
    answer = READY

    def do_GET(self) -> None:
        status, body = self.answer if self.path == "/ready" else OTHER_PROGRAM
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("LORAPLEX_PORT", str(server.server_port))
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("answer", "words"),
    [(READY, ""), (RESTARTING, "503: the engine is restarting"), (OTHER_PROGRAM, "404: not a loraplex server")],
)
def test_states(port: int, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, bytes], words: str) -> None:
    """Of a server that a proxy shows below a path: the path is the proxy's."""
    monkeypatch.setattr(Handler, "answer", answer)
    monkeypatch.setenv("LORAPLEX_ROOT_PATH", "/loraplex")
    assert healthcheck.obstacles(healthcheck.ready_url()) == words


def test_nobody_there(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORAPLEX_PORT", "9")
    assert "does not answer" in healthcheck.obstacles(healthcheck.ready_url())
