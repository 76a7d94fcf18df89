"""The socket pair between the processes: whole messages in order, however the bytes come."""

import asyncio
import random
import socket
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from loraplex.engine.processes.link import ClientEnd, EngineEnd, Frames, framed
from loraplex.engine.protocol import AbortRequest, FromEngine, Progress, Shutdown

BIG = "x" * (1 << 20)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, EngineEnd]]:
    ours, theirs = socket.socketpair()
    engine = EngineEnd(theirs)
    yield ours, engine
    ours.close()
    engine.close()


def test_frames_are_whole_wherever_the_stream_is_cut() -> None:
    source, frames = random.Random(0), Frames()
    sent = [source.randbytes(source.choice([0, 1, 3, 500])) for _ in range(200)]
    stream, found = b"".join(map(framed, sent)), list[bytes]()
    while stream:
        cut = source.choice([1, 2, 5, 700])
        found += frames.feed(stream[:cut])
        stream = stream[cut:]
    assert found == sent


async def test_messages_arrive_in_order_though_nobody_reads_for_a_while(pair: tuple[socket.socket, EngineEnd]) -> None:
    ours, engine = pair
    for number in range(20):
        engine.send([Progress(stage=f"{number} {BIG}", seconds=0.0)])
    found: list[FromEngine] = []
    client = ClientEnd(found.extend)
    await asyncio.get_running_loop().create_unix_connection(lambda: client, sock=ours)
    async with asyncio.timeout(30):
        while len(found) < 20:
            assert engine.receive(1) == []
            await asyncio.sleep(0.001)
    assert [message.stage for message in found if isinstance(message, Progress)] == [f"{n} {BIG}" for n in range(20)]
    for number in range(20):
        client.send(AbortRequest(request_id=f"{number} {BIG}"))
    heard: list[object] = []
    async with asyncio.timeout(30):
        while len(heard) < 20:
            heard += engine.receive(1)
            await asyncio.sleep(0.001)
    assert heard == [AbortRequest(request_id=f"{number} {BIG}") for number in range(20)]
    client.close()
    await asyncio.wait_for(client.closed.wait(), 60)


async def test_what_was_sent_before_the_end_arrives(pair: tuple[socket.socket, EngineEnd]) -> None:
    ours, engine = pair
    found: list[FromEngine] = []
    client = ClientEnd(found.extend)
    await asyncio.get_running_loop().create_unix_connection(lambda: client, sock=ours)
    engine.send([Progress(stage=BIG, seconds=1.0)])
    thread = threading.Thread(target=engine.close)
    thread.start()
    time.sleep(0.1)
    # Written before the loop has read what came: it must not cost the last words.
    client.send(Shutdown())
    await asyncio.wait_for(client.closed.wait(), 60)
    thread.join()
    assert found == [Progress(stage=BIG, seconds=1.0)]
    client.send(Shutdown())


def test_a_parent_that_is_gone_says_shutdown(pair: tuple[socket.socket, EngineEnd]) -> None:
    ours, engine = pair
    assert engine.receive(0) == []
    ours.sendall(framed(b"\x90"))
    ours.close()
    engine.send([Progress(stage="into the void", seconds=0.0)])
    assert engine.receive(1000) == [Shutdown()]
    engine.send([Progress(stage=BIG, seconds=0.0)])


def test_waiting_ends_with_the_first_message(pair: tuple[socket.socket, EngineEnd]) -> None:
    ours, engine = pair
    message = AbortRequest(request_id="r")
    timer = threading.Timer(0.1, lambda: ours.sendall(framed(msgspec.msgpack.encode([message]))))
    began = time.monotonic()
    timer.start()
    assert engine.receive(20_000) == [message]
    assert time.monotonic() - began < 10
    timer.join()
