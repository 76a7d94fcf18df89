"""What huge heads cost the server, beside bodies of the same size: memory and processor time of its process."""

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection

import pytest

from tests.web.http_server import tell_sizes

BLOCK = 1 << 20
LINES = b"".join(b"x-%06d: a\r\n" % number for number in range(BLOCK // 13))
HEAD = b"PUT / HTTP/1.1\r\nhost: here\r\n"
SLACK = 8 << 20


@dataclass(frozen=True)
class Process:
    pid: int
    port: int

    def memory(self) -> int:
        """Bytes that it holds."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * 4096

    def processor(self) -> int:
        """Ticks of the clock that it has worked."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def send(self, first: bytes, block: bytes, megabytes: int) -> bytes:
        """What it answers, as far as it lets one send."""
        with closing(create_connection(("127.0.0.1", self.port), timeout=60)) as connection:
            with suppress(ConnectionError):
                connection.sendall(first)
                for _ in range(megabytes):
                    connection.sendall(block)
            with suppress(ConnectionError):
                return connection.recv(1 << 16)
        return b""

    def is_well(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/")
        return connection.getresponse().status == 200


@contextmanager
def process(*arguments: str) -> Iterator[Process]:
    command = [sys.executable, "-m", tell_sizes.__module__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            server = Process(running.pid, int(running.stdout.readline()))
            assert server.is_well()
            yield server
        finally:
            running.kill()


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with process() as server:
        server.send(HEAD + b"content-length: %d\r\n\r\n" % (8 * BLOCK), bytes(BLOCK), 8)
        yield server


def test_megabytes_of_small_headers_are_not_kept(server: Process) -> None:
    before = server.memory()
    for _ in range(4):
        server.send(HEAD, LINES, 64)
        assert server.is_well()
    assert server.memory() - before < SLACK


def test_one_huge_header_costs_no_more_than_a_body_of_its_size(server: Process) -> None:
    """So nobody waits for it: without a limit the parser copies what it has with each piece that comes."""
    memory, began = server.memory(), server.processor()
    server.send(HEAD + b"content-length: %d\r\n\r\n" % (94 * BLOCK), bytes(BLOCK), 94)
    body = server.processor() - began
    began = server.processor()
    for first in (HEAD + b"x: ", b"GET /", b"GET / HTTP/1.1\r\nx"):
        server.send(first, b"a" * BLOCK, 94)
        assert server.is_well()
    assert server.processor() - began <= 3 * (body + 5)
    assert server.memory() - memory < SLACK


def test_hundreds_that_trickle_hold_little(server: Process) -> None:
    before = server.memory()
    connections = [create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(200)]
    for connection in connections:
        connection.sendall(HEAD + b"x: " + b"a" * 60_000)
    assert server.is_well()
    assert server.memory() - before < 200 * (256 << 10) + SLACK
    for connection in connections:
        connection.close()
    assert server.is_well()
