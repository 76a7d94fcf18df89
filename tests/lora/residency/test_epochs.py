"""Slots that are somebody else's by now: refused to who held them, whatever brought it about."""

from pathlib import Path

import pytest

from loraplex.lora.residency.epochs import StaleError

from ..house import House, held_slot


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def given_away(house: House, loser: str, winner: str) -> tuple[int, ...]:
    """The room of `loser`, whom somebody holds, is `winner`'s, behind the pool's back. What its holder remembers."""
    epochs = house.pool.acquire((loser,))
    room = house.pool._entries[loser].room
    assert epochs is not None and room is not None
    house.pool._store.free(room)
    house.pool.load(winner)
    for _ in range(4):
        house.pool.poll()
        while house.executor.jobs:
            house.executor.run()
    taken = house.pool._entries[winner].room
    assert taken is not None and taken.slot == room.slot
    return epochs


def test_who_lost_its_slot_is_refused_and_nobody_else(house: House) -> None:
    loser, winner = house.add(1), house.add(2)
    house.take(loser)
    house.pool.release(loser)
    epochs = given_away(house, loser, winner)
    assert house.pool.check_integrity()[0].startswith("adapter slot 0 is of epoch")
    with pytest.raises(StaleError, match=f"adapter {loser[:12]} of epoch {epochs[0]} has lost its pages"):
        house.pool.slot_of(loser, *epochs)
    house.take(winner)
    assert not house.pool.acquire((loser,)), "nobody new gets what is not there"
    house.pool.release(loser)
    house.check_pages(winner)
    assert house.pool.check_integrity() == [], "what it had lost was not freed a second time"
    house.take(loser)


def test_a_lost_slot_is_nothing_to_keep_a_copy_of(tmp_path: Path) -> None:
    house = House(tmp_path, host_pages=4)
    loser, winner = house.add(1), house.add(2)
    house.take(loser)
    house.pool.release(loser)
    epochs = given_away(house, loser, winner)
    with pytest.raises(StaleError):
        house.pool.slot_of(loser, *epochs)
    house.pool.release(loser)
    assert house.status(loser).host_bytes == 0
    house.take(loser)


def test_a_slot_is_another_after_each_load(house: House) -> None:
    digest = house.add(1)
    seen = set()
    for _ in range(3):
        house.take(digest)
        house.pool.release(digest)
        taken = house.pool.acquire((digest,))
        assert taken is not None and house.pool.slot_of(digest, *taken) == held_slot(house.pool, digest)
        for epoch in seen:
            with pytest.raises(StaleError):
                house.pool.slot_of(digest, epoch)
        seen.update(taken)
        house.pool.release(digest)
        assert house.pool.resident(digest), "an old epoch costs nobody the new one"
        house.pool.evict(digest)
        with pytest.raises(StaleError):
            house.pool.slot_of(digest, *taken)
    assert len(seen) == 3


@pytest.mark.parametrize("moment", ["before it is filled", "before it is published"])
def test_what_was_filled_for_a_slot_of_others_is_not_published(house: House, moment: str) -> None:
    digest = house.add(1)
    house.pool.load(digest)
    house.pool.poll()
    house.executor.run()
    house.pool.poll()
    entry = house.pool._entries[digest]
    assert entry.room is not None and len(house.executor.jobs) == 1
    if moment == "before it is filled":
        house.pool._store.free(entry.room)
        house.executor.run()
        assert entry.job is not None and isinstance(entry.job.exception(), StaleError), "not a byte was written"
    else:
        house.executor.run()
        house.pool._store.free(entry.room)
    house.pool.poll()
    assert "by now, not" in str(house.pool.failure(digest))
    assert not house.pool.table.rank.any() and house.pool.bytes_used == 0
    assert house.pool.check_integrity() == []
    house.pool.load(digest)
    house.work()
    house.take(digest)


def test_a_slot_of_others_is_not_filled_from_the_file_after_its_copy_was_refused(tmp_path: Path) -> None:
    house = House(tmp_path, host_pages=2)
    loser, winner = house.add(1), house.add(2)
    house.take(loser)
    house.pool.release(loser)
    house.pool.evict(loser)
    house.work()
    house.pool.load(loser)
    house.pool.poll()
    entry = house.pool._entries[loser]
    assert entry.room is not None and entry.from_host
    house.pool._store.free(entry.room)
    house.executor.run()
    assert entry.job is not None and isinstance(entry.job.exception(), StaleError)
    house.take(winner)
    assert "by now, not" in str(house.pool.failure(loser))
    house.check_pages(winner)
    assert house.pool.check_integrity() == []


def test_memory_that_was_filled_meanwhile_is_not_written_ahead(house: House) -> None:
    """As an executor that does not keep to the order of its jobs would do it."""
    first, second = house.add(1), house.add(2)
    house.pool.load(first)
    while not house.pool.resident(first):
        house.pool.poll()
        while house.executor.jobs:
            house.executor.run()
    house.pool.poll()
    [ahead] = house.executor.jobs
    house.pool.load(second)
    for _ in range(4):
        house.pool.poll()
        while len(house.executor.jobs) > 1:
            house.executor.run(1)
    assert house.pool.acquire((second,)) and house.executor.jobs == [ahead]
    house.check_pages(second)
    house.executor.run()
    assert isinstance(ahead[0].exception(), StaleError)
    house.check_pages(second)
