"""What crosses the border between the API process and a template worker: frames of four bytes of length and JSON."""

import socket
import time
from typing import Any, Final

import msgspec

MAX_FRAME: Final = 64 << 20
LENGTH_BYTES: Final = 4


class RenderJob(msgspec.Struct, frozen=True):
    """A template and what ChatTemplate.render() takes."""

    source: str
    named_tokens: dict[str, str]
    max_chars: int
    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = {}


class Rendered(msgspec.Struct, frozen=True):
    """`problem` says why there is no text."""

    text: str
    problem: str | None = None


def send_frame(channel: socket.socket, message: msgspec.Struct) -> None:
    """Raises OSError, TimeoutError after the channel's timeout."""
    data = msgspec.json.encode(message)
    channel.sendall(len(data).to_bytes(LENGTH_BYTES) + data)


def receive_frame(channel: socket.socket, deadline: float | None = None) -> bytes | None:
    """None at the end of the stream; `deadline` by time.monotonic(). Raises OSError, TimeoutError."""
    head = _receive(channel, LENGTH_BYTES, deadline)
    if head is None:
        return None
    size = int.from_bytes(head)
    if size > MAX_FRAME:
        raise OSError(f"a frame of {size} bytes")
    return _receive(channel, size, deadline)


def _receive(channel: socket.socket, size: int, deadline: float | None) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            channel.settimeout(max(0.001, deadline - time.monotonic()))
        piece = channel.recv(min(size - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return bytes(data)
