"""What browsers ask of the dashboard, as light as it can be: one process, bare sockets, bytes that nobody looks at.

python -m benchmarks.browsers HOST PORT COOKIE COUNT RELOAD PAGE..., told by lines on stdin: "open" and "close", which
answers the processor time in seconds since "open".
"""

import heapq
import io
import random
import selectors
import socket
import sys
import time
from itertools import cycle

LIVE = "/dashboard/live"


class Browsers:
    def __init__(self, host: str, port: int, cookie: str, count: int, reload_seconds: float, pages: list[str]) -> None:
        self._address, self._cookie, self._count = (host, port), cookie, count
        self._reload_seconds, self._pages = reload_seconds, pages
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, str]] = []
        """When which page is asked for."""
        self._used = 0.0
        self._words = io.FileIO(0)
        self._selector.register(self._words, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            patience = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            for key, _ in self._selector.select(patience):
                if isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj, key.data)
                elif not self._obey(self._words.readline().decode().strip()):
                    return
            while self._due and self._due[0][0] <= time.monotonic():
                self._ask(heapq.heappop(self._due)[1])

    def _obey(self, word: str) -> bool:
        """False at the end of the input."""
        if word == "open":
            self._used = time.process_time()
            for connection in [self._ask(LIVE) for _ in range(self._count)]:
                self._read(connection, LIVE)
            for _, page in zip(range(self._count), cycle(self._pages), strict=False):
                self._ask_later(page, random.uniform(0, self._reload_seconds))
            print("opened", flush=True)
        elif word == "close":
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    self._close(key.fileobj)
            self._due.clear()
            print(time.process_time() - self._used, flush=True)
        return bool(word)

    def _ask(self, path: str) -> socket.socket:
        connection = socket.create_connection(self._address, 60)
        host = f"{self._address[0]}:{self._address[1]}"
        head = f"GET {path} HTTP/1.1\r\nhost: {host}\r\ncookie: {self._cookie}\r\nconnection: close\r\n\r\n"
        connection.sendall(head.encode())
        self._selector.register(connection, selectors.EVENT_READ, path)
        return connection

    def _ask_later(self, page: str, seconds: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, page))

    def _read(self, connection: socket.socket, path: str) -> None:
        if connection.recv(1 << 16):
            return
        if path == LIVE:
            raise RuntimeError("the live stream ended")
        self._close(connection)
        self._ask_later(path, self._reload_seconds)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()


if __name__ == "__main__":
    host, port, cookie, count, reload_seconds, *pages = sys.argv[1:]
    Browsers(host, int(port), cookie, int(count), float(reload_seconds), pages).run()
