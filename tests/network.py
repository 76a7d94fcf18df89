"""Watch: sees whoever tries to reach another machine, by a connection, a datagram or a question for an address."""

import ipaddress
import sys
from typing import Any

CONNECTING = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
ASKING = frozenset({"socket.getaddrinfo", "socket.gethostbyname"})


class Watch:
    """Of this process, from now on: an audit hook cannot be taken off again. Each attempt fails and is kept."""

    def __init__(self) -> None:
        self.attempts: list[str] = []
        sys.addaudithook(self._look)

    def take(self) -> list[str]:
        """Attempts since the last time."""
        taken, self.attempts = self.attempts, []
        return taken

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in CONNECTING:
            address = arguments[1] if len(arguments) > 1 else None
            host = address[0] if isinstance(address, tuple) else None
        elif event in ASKING:
            host = arguments[0]
        else:
            return
        if host and not is_local(host):
            self.attempts.append(f"{event} {host}")
            raise OSError(f"a test must not leave this machine: {event} {host}")


def is_local(host: str | bytes) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    try:
        return name in ("localhost", "testserver") or _is_ours(ipaddress.ip_address(name.partition("%")[0]))
    except ValueError:
        return False


def _is_ours(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Unspecified: where a server listens that is for all."""
    return address.is_loopback or address.is_unspecified
