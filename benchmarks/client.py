"""Client: one connection to a server, for benchmarks that measure it from outside."""

import http.client
import json
import time
from typing import Any, Final

from loraplex.web.load_generator import Server

IDLE_SECONDS: Final = 2.0
"""After which the server may have closed the connection."""


class Client:
    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=600)
        self._used = time.monotonic()
        self._headers = {"authorization": f"Bearer {server.key}", "content-type": "application/json"}

    def ask(self, method: str, path: str, content: bytes | None = None, **headers: str) -> Any:
        """The answer's JSON. RuntimeError for a refusal."""
        if time.monotonic() - self._used > IDLE_SECONDS:
            self._connection.close()
        self._used = time.monotonic()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, content, self._headers | named)
        answer = self._connection.getresponse()
        read = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} {read.decode()[:300]}")
        return json.loads(read)

    def first_token_ms(self, body: dict[str, Any]) -> float:
        """From the request for a streamed completion to its first event. The rest is read, too."""
        content = json.dumps(body | {"stream": True})
        started = time.perf_counter()
        self._connection.request("POST", "/v1/completions", content, self._headers)
        answer = self._connection.getresponse()
        first = answer.readline()
        taken = 1000 * (time.perf_counter() - started)
        if answer.status != 200 or not first.startswith(b"data: "):
            raise RuntimeError(f"{answer.status} {(first + answer.read()).decode()[:300]}")
        answer.read()
        return taken
