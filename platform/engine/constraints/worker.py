"""The grammar process: follows constrained choices for the engine, on the socket whose number is its argument.

Reading a vocabulary holds the interpreter for a second and some grammars never end to compile: neither may happen where
steps are made. One thread compiles, the other follows choices. The engine ends this process when it takes too long.
"""

import contextlib
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from ..processes.link import CHUNK, Frames, framed
from ..processes.lost_threads import end_with_lost_threads
from .grammars import Grammars, GrammarState, NotCompiled
from .messages import Advance, Allowed, Began, Close, FromGrammars, Open, Refused, ToGrammars
from .orders import Orders

MEMORY: Final = 4 << 30
"""Bytes of address space."""
COMPILER_NICENESS: Final = 10
"""Steps and masks come first."""


class Worker:
    def __init__(self, connection: socket.socket, folder: Path) -> None:
        self._connection = connection
        self._grammars = Grammars(folder)
        self._choices: dict[int, GrammarState] = {}
        self._lock = threading.Lock()
        self._orders = Orders()
        self._closed: set[int] = set()
        """Choices that ended before their grammar was compiled."""
        self._opening: set[int] = set()
        self._encoder = msgspec.msgpack.Encoder()

    def run(self) -> None:
        """Until the engine hangs up."""
        threading.Thread(target=self._compile, daemon=True).start()
        frames, decoder = Frames(), msgspec.msgpack.Decoder(ToGrammars)
        while data := self._connection.recv(CHUNK):
            for frame in frames.feed(data):
                self._handle(decoder.decode(frame))

    def _handle(self, message: ToGrammars) -> None:
        match message:
            case Open():
                self._open_known(message)
            case Advance():
                for number, token_ids in message.drawn:
                    if number in self._choices:
                        self._follow(number, self._choices[number], token_ids)
            case Close():
                with self._lock:
                    self._closed |= self._opening.intersection(message.choices)
                for number in message.choices:
                    self._choices.pop(number, None)

    def _open_known(self, order: Open) -> None:
        """Only what has to be compiled waits for its turn."""
        choice = self._grammars.known(order)
        if choice is not None:
            self._choices[order.choice] = choice
            self._follow(order.choice, choice, order.tokens)
            return
        with self._lock:
            self._opening.add(order.choice)
        self._orders.put(order)

    def _follow(
        self, number: int, choice: GrammarState, token_ids: Iterable[int], compile_seconds: float | None = None
    ) -> None:
        try:
            for token_id in token_ids:
                choice.draw(token_id)
            tokens, complete = choice.allowed()
        except NotCompiled as error:
            self._choices.pop(number, None)
            self._send(Refused(choice=number, reason=str(error), compile_seconds=compile_seconds))
        else:
            self._send(Allowed(choice=number, tokens=tokens, complete=complete, compile_seconds=compile_seconds))

    def _compile(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPILER_NICENESS)
        while True:
            order = self._orders.get()
            try:
                self._open(order)
            except BaseException:  # llguidance's panics are no Exception
                traceback.print_exc()
                os._exit(1)
            with self._lock:
                self._opening.discard(order.choice)
                if order.choice in self._closed:
                    self._closed.discard(order.choice)
                    self._choices.pop(order.choice, None)

    def _open(self, order: Open) -> None:
        with self._lock:
            if order.choice in self._closed:
                return
        began: list[float] = []

        def on_compile() -> None:
            began.append(time.monotonic())
            self._send(Began(choice=order.choice))

        try:
            choice = self._grammars.begin(order, on_compile)
        except NotCompiled as error:
            self._send(Refused(choice=order.choice, reason=str(error), compile_seconds=_since(began)))
            return
        self._choices[order.choice] = choice
        self._follow(order.choice, choice, order.tokens, _since(began))

    def _send(self, message: FromGrammars) -> None:
        payload = framed(self._encoder.encode(message))
        with self._lock:
            self._connection.sendall(payload)


def _since(began: list[float]) -> float | None:
    return time.monotonic() - began[0] if began else None


def main() -> None:
    """Ctrl-C in a terminal reaches this process too; the engine decides when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for what, amount in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (amount, amount))
    end_with_lost_threads()
    with contextlib.suppress(ConnectionError):
        Worker(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])).run()
    os._exit(0)


if __name__ == "__main__":
    main()
