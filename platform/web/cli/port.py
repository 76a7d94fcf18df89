"""The listening socket, taken before anything slow happens, with words when it cannot be had."""

import errno
import socket

TRIED_PORTS = 20


def listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A bound socket. Raises ValueError that says who or what is in the way and which flag helps."""
    try:
        return _bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            free = _free_port_after(host, port)
            hint = (
                f"Stop that program, or choose another port: {flag} {free}" if free else f"Choose another with {flag}"
            )
            raise ValueError(f"port {port} on {host} is in use by another program. {hint}") from None
        if error.errno == errno.EACCES:
            raise ValueError(
                f"port {port} needs more rights than this user has. Choose one from 1024 up: {flag} 8000"
            ) from None
        raise ValueError(f"cannot listen on {host}, port {port}: {error.strerror or error}. Check --host") from None


def _bind(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # asyncio turns Nagle off, which holds small answers back by 40 ms, only for sockets that name their protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _free_port_after(host: str, port: int) -> int | None:
    for candidate in range(port + 1, min(port + TRIED_PORTS, 65535)):
        try:
            _bind(host, candidate).close()
        except OSError:
            continue
        return candidate
    return None
