"""GrammarProcess: one life of the process that follows constrained choices, as the engine sees it."""

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from ..processes.link import CHUNK, Frames, SendBuffer, framed
from .messages import FromGrammars, ToGrammars


class GrammarProcess:
    """Started at once. Sending never waits: what the process has no room for is kept and sent later."""

    def __init__(self, folder: Path) -> None:
        """folder: of the checkpoint, for its tokenizer."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.ended = False
        """Nothing more will come."""
        self._connection = ours
        self._poll = select.poll()
        self._unsent = SendBuffer(ours)
        self._frames = Frames()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromGrammars)
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-s", "-m", "loraplex.engine.constraints.worker", str(theirs.fileno()), folder],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )

    def send(self, message: ToGrammars) -> None:
        self._unsent.push(framed(self._encoder.encode(message)))

    def receive(self, seconds: float) -> list[FromGrammars]:
        """All messages that are there; waits up to `seconds` for the first."""
        self._poll.register(self._connection, self._unsent.events)
        self._poll.poll(seconds * 1000)
        self._unsent.push()
        messages: list[FromGrammars] = []
        try:
            while data := self._connection.recv(CHUNK):
                messages += map(self._decoder.decode, self._frames.feed(data))
        except BlockingIOError:
            return messages
        except ConnectionError:
            pass
        self.ended = True
        return messages

    def kill(self) -> None:
        """Twice is no error."""
        self.ended = True
        self._connection.close()
        self._child.kill()
        self._child.wait()


def _environment() -> dict[str, str]:
    """No secrets of ours, and the same loraplex that runs here."""
    given = os.environ.get("PYTHONPATH")
    return {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join([str(_source()), *([given] if given else [])])}


def _source() -> Path:
    """The folder that loraplex is imported from, here and there."""
    import loraplex

    return Path(loraplex.__file__).parents[1]
