"""FakeHub: answers huggingface_hub on 127.0.0.1 as the hub does, with one repository at one commit."""

import hashlib
import re
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

REPOSITORY = "acme/sql-lora"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
RESOLVE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<commit>[^/]+)/(?P<file>.+)")


class FakeHub(ThreadingHTTPServer):
    """`files`: what the repository holds. `asked`: method and file of each request, `credentials`: what it came with.
    `refusal`: an HTTP status."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.asked: list[tuple[str, str]] = []
        self.credentials: set[str | None] = set()
        self.refusal: int | None = None
        self.declared_size: int | None = None
        """Instead of the true one, in answers to HEAD."""
        self.names_commit = True
        self.stalls, self.go_on = False, threading.Event()
        """Files come to their middle, and go on when told."""
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.go_on.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        found = RESOLVE.fullmatch(self.path)
        if found is None:
            return self._refuse(404, "")
        file = found["file"]
        self.server.asked.append((self.command, file))
        self.server.credentials.add(self.headers.get("authorization"))
        if self.server.refusal is not None:
            return self._refuse(self.server.refusal, "")
        if found["repository"] != REPOSITORY:
            return self._refuse(404, "RepoNotFound")
        if found["commit"] != COMMIT:
            return self._refuse(404, "RevisionNotFound")
        if file not in self.server.files:
            return self._refuse(404, "EntryNotFound")
        return self._send(self.server.files[file])

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        if code:
            self.send_header("x-error-code", code)
        self.end_headers()

    def _send(self, data: bytes) -> None:
        is_head = self.command == "HEAD"
        size = self.server.declared_size if is_head and self.server.declared_size is not None else len(data)
        self.send_response(200)
        self.send_header("content-length", str(size))
        self.send_header("etag", f'"{hashlib.sha256(data).hexdigest()}"')
        if self.server.names_commit:
            self.send_header("x-repo-commit", COMMIT)
        self.end_headers()
        if not is_head:
            half = len(data) // 2 if self.server.stalls else len(data)
            self.wfile.write(data[:half])
            if half < len(data):
                self.server.go_on.wait()
                with suppress(ConnectionError):
                    self.wfile.write(data[half:])
