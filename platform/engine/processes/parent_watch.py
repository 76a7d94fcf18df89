"""A process that loads notices that its parent is gone: nothing else reads the connection until it serves."""

import os
import select
import socket
import threading


def end_with_parent(connection: socket.socket, serving: threading.Event) -> None:
    """End this process at once when the other end is closed, unless `serving` is set by then."""
    poll = select.poll()
    poll.register(connection, 0)  # a closed end is told without being asked for

    def watch() -> None:
        poll.poll()
        if not serving.is_set():
            os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
