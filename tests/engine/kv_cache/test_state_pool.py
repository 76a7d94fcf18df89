import pytest

from loraplex.engine.kv_cache.state_pool import StatePool

from .test_block_pool import keys


def test_a_pool_without_a_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="room for 1 states and at least 2"):
        StatePool(1)


def test_the_last_snapshot_of_a_prefix_is_found_whatever_is_missing_before() -> None:
    pool, chain = StatePool(4), keys(5)
    slot = pool.allocate()
    pool.publish(slot, chain[2])
    assert pool.latest(chain) == (3, slot)
    assert pool.latest(chain[:2]) == (0, None)
    assert pool.latest([]) == (0, None)


def test_an_adopted_snapshot_is_held_and_found_no_more() -> None:
    pool, chain = StatePool(2), keys(1)
    slot = pool.allocate()
    pool.publish(slot, chain[0])
    pool.free([slot])
    pool.adopt(slot)
    assert pool.num_free == 0 and pool.latest(chain) == (0, None)
    assert pool.check_integrity([[slot]]) == []


@pytest.mark.parametrize("held", [False, True])
def test_a_withdrawn_snapshot_is_found_no_more(held: bool) -> None:
    pool, chain = StatePool(3), keys(2)
    slot = pool.allocate()
    pool.publish(slot, chain[0])
    if not held:
        pool.free([slot])
    pool.withdraw(chain[0])
    pool.withdraw(chain[1])
    assert pool.latest(chain) == (0, None) and pool.num_cached == 0
    assert pool.check_integrity([[slot]] if held else []) == []
