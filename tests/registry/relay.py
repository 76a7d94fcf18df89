"""A way to a server that may break, fall silent and come back."""

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Literal, Self


class Relay:
    """Passes on what clients and the server say; or keeps to itself what clients say; or breaks a connection with a
    reset as its client says something. Takes connections all the time."""

    def __init__(self, host: str, port: int) -> None:
        self.mode: Literal["pass", "silent", "break"] = "pass"
        self.taken = 0
        """Connections, so far."""
        self._server = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._take, daemon=True).start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.taken += 1
                server = socket.create_connection(self._server)
                threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()
                threading.Thread(target=self._pass_back, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self.mode == "break":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                if self.mode == "pass":
                    server.sendall(data)
        client.close()
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)  # wakes the other thread

    def _pass_back(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)
        server.close()
