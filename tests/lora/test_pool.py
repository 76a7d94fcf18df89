"""AdapterPool, step by step: loads, evictions, failures, and who waits for whom."""

import time
from pathlib import Path

import pytest
import torch

from loraplex.lora import loader
from loraplex.lora.eviction import FORGOTTEN
from loraplex.lora.loader import PATIENCE
from loraplex.lora.pool import AdapterPool

from .adapters import BASE
from .house import PAGE, House, held_slot


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


def test_adapters_that_are_wanted_together_are_not_evicted_for_each_other(house: House) -> None:
    first, second, third = house.add(1), house.add(2), house.add(3)
    for digest in (third, first):
        house.take(digest)
        house.pool.release(digest)
        house.clock.now += 1
    house.add(4)
    assert not house.pool.acquire((first, second)), "first is here already, second is not"
    assert house.pool.check_integrity() == [] and house.status(first).running == 0
    for _ in range(6):
        house.pool.acquire((first, second))
        house.work(1)
        house.clock.now += PATIENCE / 2
    assert house.pool.acquire((first, second))
    for digest in (first, second):
        house.check_pages(digest)
        house.pool.release(digest)


def test_the_waited_for_partner_pushes_out_strangers_only(house: House) -> None:
    """Both pairs want more room than there is: the pair that asked first gets it, and then the other."""
    pairs = [(house.add(1), house.add(2)), (house.add(3), house.add(4))]
    served: list[tuple[str, ...]] = []
    for _ in range(200):
        for pair in pairs:
            if pair not in served and house.pool.acquire(pair):
                for digest in pair:
                    house.check_pages(digest)
                    house.pool.release(digest)
                served.append(pair)
        house.work(1)
        house.clock.now += 0.1
    assert served == pairs


def test_a_sum_that_never_fits_is_refused_in_words(house: House) -> None:
    together = tuple(house.add(seed) for seed in range(4))
    for _ in range(20):
        house.pool.acquire(together)
        house.work(1)
        house.clock.now += 0.1
    reasons = [house.pool.failure(digest) for digest in together]
    assert any(reason is not None and "asked for with it" in reason for reason in reasons)
    alone = house.add(9)
    house.clock.now += FORGOTTEN + 1
    house.take(alone)


@pytest.mark.parametrize("jobs_run", [0, 1, 2])
def test_unregistering_during_a_load(house: House, jobs_run: int) -> None:
    digest = house.add(1)
    house.pool.acquire((digest,))
    for _ in range(jobs_run):
        house.executor.run()
        house.pool.poll() if jobs_run > 1 else None
    house.pool.unregister(digest)
    house.work()
    assert house.pool.bytes_used == 0 and not house.pool.loading() and house.pool.statuses() == []
    house.take(house.add(1))


def test_registering_again_before_the_last_user_is_gone(house: House) -> None:
    digest = house.add(1)
    house.take(digest)
    house.pool.unregister(digest)
    house.add(1)
    assert house.pool.acquire((digest,))
    house.pool.release(digest)
    house.pool.release(digest)
    assert house.pool.resident(digest)


def test_another_folder_for_the_same_adapter(house: House) -> None:
    digest = house.add(1)
    house.take(digest)
    house.pool.release(digest)
    house.pool.evict(digest)
    moved = house.folder / "moved"
    (house.folder / "1").rename(moved)
    house.pool.register(digest, str(moved))
    house.take(digest)


def test_evict(house: House) -> None:
    digest = house.add(1)
    house.pool.acquire((digest,))
    with pytest.raises(ValueError, match="is being loaded"):
        house.pool.evict(digest)
    house.take(digest)
    house.pool.evict(digest)
    assert not house.pool.acquire((digest,)), "nobody new may take it"
    house.check_pages(digest)
    house.pool.release(digest)
    assert house.status(digest).state == "registered" and house.pool.bytes_used == 0
    assert not house.pool.table.rank.any(), "its slot does nothing any more"
    house.pool.pin(digest, True)
    house.work()
    with pytest.raises(ValueError, match="is pinned"):
        house.pool.evict(digest)
    with pytest.raises(ValueError, match="not registered"):
        house.pool.evict("0" * 64)


def test_steady_users_do_not_keep_a_new_one_out(house: House) -> None:
    """Three adapters are in use without a pause; the fourth still comes, and so does everyone after it."""
    steady = [house.add(seed) for seed in range(3)]
    waiting = house.add(9)
    running = []
    for digest in steady:
        house.take(digest)
        running.append(digest)
    served = []
    for _ in range(4000):
        house.clock.now += 0.01
        for digest in (*steady, waiting):
            if house.pool.acquire((digest,)):
                running.append(digest)
                served.append(digest)
        while len(running) > 6:
            house.pool.release(running.pop(0))
        house.work(1)
    assert min(served.count(digest) for digest in (*steady, waiting)) > 50


def test_small_ones_overtake_until_patience_ends(house: House) -> None:
    used, large, small, late = house.add(1, rank=16), house.add(2, rank=24), house.add(3), house.add(4)
    house.take(used)
    assert not house.pool.acquire((large,))
    house.work()
    house.take(small)
    house.pool.release(small)
    house.clock.now += PATIENCE
    assert not house.pool.acquire((large,)) and not house.pool.acquire((late,))
    house.work()
    assert not house.pool.resident(small) and house.status(late).loads == 0, "its room is kept"
    assert not house.pool.acquire((used,)), "in its turn"
    house.pool.release(used)
    house.work()
    assert house.pool.acquire((large,))
    assert house.status(small).evicted_for == house.status(used).evicted_for == large


def test_who_stops_asking_loses_the_place(house: House) -> None:
    used, gone, late = house.add(1, rank=24), house.add(2), house.add(3)
    house.take(used)
    assert not house.pool.acquire((gone,))
    house.work()
    house.clock.now += FORGOTTEN
    assert not house.pool.acquire((late,))
    house.work()
    assert house.status(gone).state == "registered" and house.status(late).state == "loading"


def test_a_fresh_adapter_is_used_before_it_is_evicted(tmp_path: Path) -> None:
    house = House(tmp_path, slots=1)
    digests = [house.add(seed) for seed in range(4)]
    waiting = list(digests)
    for _ in range(40):
        for digest in list(waiting):
            if house.pool.acquire((digest,)):
                waiting.remove(digest)
                house.pool.release(digest)
        house.work(1)
    assert not waiting
    assert sum(status.loads for status in house.pool.statuses()) == len(digests)


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
