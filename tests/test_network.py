"""The tests' own watch over the network: what it lets pass, and what it does not."""

import socket
from collections.abc import Callable

import pytest

from .conftest import NETWORK
from .network import is_local

ELSEWHERE = ("192.0.2.1", 9)
"""An address that nobody has."""


def send_datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"hello", ELSEWHERE)


@pytest.mark.parametrize(
    "leave", [lambda: socket.create_connection(ELSEWHERE, 1), send_datagram, lambda: socket.gethostbyname("db.example")]
)
def test_an_attempt_fails_and_is_told(leave: Callable[[], object]) -> None:
    with pytest.raises(OSError, match="must not leave this machine"):
        leave()
    assert len(NETWORK.take()) == 1, "else this very test would fail"


def test_this_machine_is_within_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
        assert NETWORK.take() == []


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("::1", True), (b"localhost", True), ("db", False)])
def test_what_is_local(host: str | bytes, local: bool) -> None:
    assert is_local(host) is local
