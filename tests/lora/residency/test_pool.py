"""AdapterPool, step by step: loads, evictions, failures."""

import time
from pathlib import Path

import pytest
import torch

from loraplex.lora.residency import loader
from loraplex.lora.residency.pool import AdapterPool

from ..adapters import BASE
from ..house import PAGE, House, held_slot


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_a_load_goes_on_in_the_background(house: House) -> None:
    ready, missing = house.add(1), house.add(2)
    house.take(ready)
    assert not house.pool.acquire((missing,))
    assert house.pool.loading() and house.status(missing).state == "loading"
    house.pool.poll()
    assert house.pool.acquire((ready,)), "nobody else waits"
    assert not house.pool.acquire((missing,)) and house.pool.failure(missing) is None
    slots_shown = int((house.pool.table.rank.amax(dim=(1, 2)) > 0).sum())
    house.executor.run()
    house.pool.poll()
    house.executor.run()
    assert int((house.pool.table.rank.amax(dim=(1, 2)) > 0).sum()) == slots_shown, "published before poll"
    house.pool.poll()
    assert house.pool.acquire((missing,)) and not house.pool.loading()
    house.check_pages(missing)
    status = house.status(missing)
    assert (status.state, status.rank, status.pages, status.bytes, status.loads) == ("resident", 8, 2, PAGE, 1)
    assert house.pool.bytes_used == 2 * PAGE


def test_ranks_are_paid_for_as_they_are(house: House) -> None:
    house.take(house.add(1, rank=1))
    assert house.pool.bytes_used == PAGE
    house.take(house.add(2, rank=16))
    assert house.pool.bytes_used == 3 * PAGE


def test_the_least_recently_used_goes(house: House) -> None:
    first, second, third, fourth = (house.add(seed) for seed in range(4))
    for digest in (first, second, third, first):
        house.take(digest)
        house.pool.release(digest)
        house.clock.now += 1
    house.take(fourth)
    assert house.status(second).state == "registered"
    assert (house.status(second).evictions, house.status(second).evicted_for) == (1, fourth)
    assert house.pool.resident(first) and house.pool.resident(third)
    house.take(second)
    assert house.status(second).loads == 2
    house.pool.release(fourth)
    house.pool.release(second)
    for digest in (first, second, third, fourth):
        house.pool.unregister(digest)
    assert house.pool.statuses() == []
    assert house.pool.evictions == 2, "they stay counted when the adapters go, and going is none"


def test_used_and_pinned_adapters_stay(house: House) -> None:
    used, pinned, idle, new = house.add(1), house.add(2, pinned=True), house.add(3), house.add(4)
    house.work()
    assert house.pool.resident(pinned)
    house.take(used)
    house.take(idle)
    house.pool.release(idle)
    house.clock.now += 1
    house.take(new)
    assert not house.pool.resident(idle) and house.pool.resident(pinned)
    house.check_pages(used)


def test_nothing_is_evicted_in_vain(house: House) -> None:
    used, idle, large = house.add(1, rank=16), house.add(2), house.add(3, rank=24)
    house.take(used)
    house.take(idle)
    house.pool.release(idle)
    assert not house.pool.acquire((large,))
    house.work()
    assert house.pool.resident(idle), "even without it the large one does not fit yet"


def test_what_never_fits_is_told_with_numbers(house: House) -> None:
    giant, other = house.add(1, rank=40), house.add(2)
    house.take(other)
    assert not house.pool.acquire((giant,))
    house.work()
    message = house.pool.failure(giant)
    assert message is not None and f"{5 * PAGE / 1e6:.1f} MB" in message and f"{3 * PAGE / 1e6:.1f} MB" in message
    assert "adapter_memory" in message and house.pool.is_unfit(giant)
    assert house.pool.acquire((other,)), "nobody had to leave for it"


def test_what_pinned_adapters_leave_no_room_for_fails(house: House) -> None:
    house.add(1, rank=16, pinned=True)
    large = house.add(2, rank=16)
    house.work()
    assert not house.pool.acquire((large,))
    house.work()
    message = house.pool.failure(large)
    assert message is not None and "fewer pins" in message
    assert not house.pool.is_unfit(large), "it is about the others"


def test_slots_are_room_too(tmp_path: Path) -> None:
    house = House(tmp_path, pages=8, slots=1)
    first, second = house.add(1), house.add(2)
    house.take(first)
    assert not house.pool.acquire((second,))
    house.work()
    assert not house.pool.resident(second)
    house.pool.release(first)
    house.take(second)
    assert not house.pool.resident(first)


def test_a_failed_load_marks_that_adapter_only_and_is_tried_again(house: House) -> None:
    bad, good = house.add(1), house.add(2)
    weights = house.folder / "1" / "adapter_model.safetensors"
    right = weights.read_bytes()
    weights.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    assert not house.pool.acquire((bad,))
    house.work()
    message = house.pool.failure(bad)
    assert message is not None and "has changed on disk" in message and not house.pool.is_unfit(bad)
    assert house.status(bad).state == "failed" and house.status(bad).error == message
    house.take(good)
    assert house.pool.bytes_used == PAGE and not bool(house.pool.table.rank[1:].any())
    weights.write_bytes(right)
    assert not house.pool.acquire((bad,)) and not house.pool.loading(), "not at once"
    house.clock.now += 1.1
    assert house.pool.failure(bad) is None
    house.take(bad)


def test_waits_between_tries_grow(house: House) -> None:
    bad = house.add(1)
    (house.folder / "1" / "adapter_config.json").unlink()
    waits = []
    for _ in range(8):
        house.pool.acquire((bad,))
        house.work()
        started = house.clock.now
        while house.pool.failure(bad):
            house.clock.now += 0.5
        waits.append(house.clock.now - started)
    assert waits == sorted(waits) and 1 <= waits[0] < 2 and 60 <= waits[-1] < 61


def test_an_order_does_not_wait_for_the_next_try(house: House) -> None:
    bad = house.add(1)
    config = house.folder / "1" / "adapter_config.json"
    text = config.read_bytes()
    config.unlink()
    house.pool.load(bad)
    house.work()
    assert house.pool.failure(bad) and not house.pool.is_unfit(bad)
    config.write_bytes(text)
    house.pool.load(bad)
    assert house.pool.failure(bad) is None
    house.work()
    assert house.pool.resident(bad)


def test_unregistered_adapters_stay_for_their_users(house: House) -> None:
    digest = house.add(1)
    house.take(digest)
    house.take(digest)
    house.pool.unregister(digest)
    assert not house.pool.acquire((digest,)) and "not registered" in str(house.pool.failure(digest))
    assert house.pool.statuses() == []
    house.pool.release(digest)
    house.check_pages(digest)
    house.pool.release(digest)
    assert house.pool.bytes_used == 0 and house.pool.check_integrity() == []
    house.pool.unregister(digest)


def test_check_integrity_sees_damage(house: House) -> None:
    digest = house.add(1)
    house.take(digest)
    house.pool._store._free_slots.append(held_slot(house.pool, digest))
    assert house.pool.check_integrity()


def test_a_real_thread(tmp_path: Path) -> None:
    pool = AdapterPool(BASE, memory=2 * PAGE, slots=2, dtype=torch.float32, device=torch.device("cpu"))
    house = House(tmp_path)
    house.pool = pool
    digests = [house.add(seed) for seed in range(4)]
    for digest in digests * 10:
        deadline = time.monotonic() + 60
        while not pool.acquire((digest,)):
            assert pool.failure(digest) is None and time.monotonic() < deadline
            pool.poll()
            time.sleep(0.0005)
        house.check_pages(digest)
        assert pool.check_integrity() == []
        pool.release(digest)
    pool.close()


def test_memory_for_the_next_adapter_is_written_before_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "TOUCHED_TOGETHER", PAGE // 2)
    house, page = House(tmp_path, pages=4), PAGE // 4
    arena = house.pool.table.arena.fill_(torch.nan)
    first, second, third = (house.add(seed) for seed in range(3))
    house.take(first)
    house.work()
    assert not arena[: 2 * page].isnan().any(), "its own pages, and as much again"
    assert arena[2 * page :].isnan().all(), "no more than the next one may take"
    house.check_pages(first)
    house.take(second)
    house.check_pages(first)
    house.check_pages(second)
    house.work()
    assert not house.pool.acquire((third,))
    house.pool.poll()
    assert len(house.executor.jobs) == 1, "who waits is alone"
    house.work()
    house.take(third)
    house.check_pages(third)


def test_memory_is_written_one_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "TOUCHED_TOGETHER", PAGE // 2)
    house, page = House(tmp_path, pages=4), PAGE // 4
    arena = house.pool.table.arena.fill_(torch.nan)
    digest = house.add(1)
    while not house.pool.acquire((digest,)):
        house.pool.poll()
        if house.pool.loading():
            house.executor.run()
    house.pool.poll()
    house.pool.poll()
    assert len(house.executor.jobs) == 1 and arena[page:].isnan().all()
    house.executor.run()
    assert int(arena.isnan().logical_not().sum()) == page + page // 2
