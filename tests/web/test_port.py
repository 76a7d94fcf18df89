"""The listening socket."""

import asyncio
import socket

from loraplex.web.cli.port import listen


async def test_small_answers_are_not_held_back() -> None:
    """Nagle's algorithm is off on what the socket accepts, in asyncio's own loop as in others."""
    accepted = asyncio.get_running_loop().create_future()

    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with listen("127.0.0.1", 0) as listener:
        async with await asyncio.start_server(greet, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await asyncio.wait_for(accepted, 60)
            writer.close()
