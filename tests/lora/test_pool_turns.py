"""Who waits for whom in AdapterPool: adapters that are wanted together, and those that do not fit side by side."""

from pathlib import Path

import pytest

from loraplex.lora.residency.eviction import FORGOTTEN
from loraplex.lora.residency.loader import PATIENCE

from .house import House
from .residency.test_pool import house

__all__ = ["house"]


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
