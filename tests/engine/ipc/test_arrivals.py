"""What comes of a request while nobody reads: joined by choice, in order, and nothing of it lost."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loraplex.engine.ipc.arrivals import READERS_A_TURN, Arrivals, ReadersInTurn
from loraplex.engine.protocol import FinishReason, TokenLogprob, Tokens


def of(index: int, *token_ids: int, **rest: Any) -> Tokens:
    return Tokens(request_id="a", index=index, token_ids=list(token_ids), **rest)


def entry(token_id: int) -> TokenLogprob:
    return TokenLogprob(token_id=token_id, logprob=-1.0, rank=1, top=[])


async def test_each_message_alone_where_somebody_waits() -> None:
    arrivals = Arrivals(ReadersInTurn())
    for token_id in range(3):
        reader = asyncio.ensure_future(arrivals.get())
        await asyncio.sleep(0)
        arrivals.put(of(0, token_id))
        assert await reader == [of(0, token_id)]


async def test_joined_where_nobody_reads() -> None:
    arrivals = Arrivals(ReadersInTurn())
    arrivals.put(of(0, 1, logprobs=[entry(1)], prompt_logprobs=[None], cached_tokens=16, queue_seconds=0.5))
    arrivals.put(of(0, 2, 3, logprobs=[entry(2), entry(3)]))
    arrivals.put(of(0, 4, logprobs=[entry(4)], finish_reason=FinishReason.STOP, stop_reason=4))
    assert await arrivals.get() == [
        of(
            0,
            *(1, 2, 3, 4),
            logprobs=[entry(1), entry(2), entry(3), entry(4)],
            prompt_logprobs=[None],
            cached_tokens=16,
            queue_seconds=0.5,
            finish_reason=FinishReason.STOP,
            stop_reason=4,
        )
    ]


async def test_what_was_read_stays_as_it_was() -> None:
    arrivals = Arrivals(ReadersInTurn())
    arrivals.put(of(0, 1))
    (first,) = await arrivals.get()
    arrivals.put(of(0, 2))
    assert (first, await arrivals.get()) == (of(0, 1), [of(0, 2)])


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
async def test_a_choice_that_is_cut_short_ends_after_its_tokens(reason: FinishReason) -> None:
    arrivals = Arrivals(ReadersInTurn())
    for message in (of(0, 1), of(1, 7), of(0, 2), of(0, finish_reason=reason)):
        arrivals.put(message)
    assert await arrivals.get() == [of(0, 1, 2), of(1, 7), of(0, finish_reason=reason)]


async def test_a_failure_comes_after_what_came_before_it() -> None:
    arrivals = Arrivals(ReadersInTurn())
    arrivals.put(of(0, 1))
    arrivals.fail(ValueError("gone"))
    assert await arrivals.get() == [of(0, 1)]
    with pytest.raises(ValueError, match="gone"):
        await arrivals.get()


async def test_few_readers_wake_in_one_turn_of_the_loop() -> None:
    """All else that the loop does has its turn between them, and the order is that of the tokens."""
    turns, turn, woken = ReadersInTurn(), 0, list[tuple[int, int]]()
    everyone = [Arrivals(turns) for _ in range(5 * READERS_A_TURN)]

    async def read(number: int) -> None:
        for _ in range(3):
            await everyone[number].get()
            woken.append((turn, number))

    readers = [asyncio.create_task(read(number)) for number in range(len(everyone))]
    await asyncio.sleep(0)
    for step in range(3):
        for arrivals in everyone:
            arrivals.put(of(0, step))
        while len(woken) < (step + 1) * len(everyone):
            await asyncio.sleep(0)
            turn += 1
    await asyncio.gather(*readers)
    by_turn = Counter(turn for turn, _ in woken)
    assert max(by_turn.values()) <= READERS_A_TURN
    assert [number for _, number in woken] == list(range(len(everyone))) * 3


@given(
    sent=st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), max_size=3)), min_size=1),
    reads=st.sets(st.integers(0, 50)),
)
def test_every_choice_has_its_tokens_in_their_order(sent: list[tuple[int, list[int]]], reads: set[int]) -> None:
    async def run() -> list[Tokens]:
        arrivals, read = Arrivals(ReadersInTurn()), list[Tokens]()
        for number, (index, token_ids) in enumerate(sent):
            arrivals.put(of(index, *token_ids))
            if number in reads:
                read += await arrivals.get()
        arrivals.fail(EOFError())
        try:
            while True:
                read += await arrivals.get()
        except EOFError:
            return read

    read = asyncio.run(run())
    for choice in range(3):
        whole = [token for index, tokens in sent if index == choice for token in tokens]
        assert [token for message in read if message.index == choice for token in message.token_ids] == whole
    assert len(read) <= 3 * (1 + len([number for number in reads if number < len(sent)]))
