import pytest

from loraplex.engine.kv_cache.block_pool import PADDING_BLOCK, BlockPool
from loraplex.engine.kv_cache.prefix import BlockKey, block_key, root_hash


def keys(count: int, salt: str = "") -> list[BlockKey]:
    """A chain of `count` blocks."""
    chain: list[BlockKey] = []
    parent = root_hash(salt, "base")
    for index in range(count):
        chain.append(block_key(parent, [index, index]))
        parent = chain[-1].hash
    return chain


def publish(pool: BlockPool, chain: list[BlockKey]) -> list[int]:
    blocks = [pool.allocate() for _ in chain]
    for block, key in zip(blocks, chain, strict=True):
        pool.publish(block, key)
    return blocks


def test_every_block_but_the_padding_block_is_handed_out_once() -> None:
    pool = BlockPool(8, 2)
    blocks = [pool.allocate() for _ in range(pool.num_usable)]
    assert sorted(blocks) == list(range(1, 8)) and PADDING_BLOCK not in blocks
    assert pool.num_free == 0
    assert pool.check_integrity([blocks]) == []


def test_a_pool_of_the_padding_block_stores_nothing() -> None:
    with pytest.raises(ValueError, match="0 blocks and needs at least the one that pads"):
        BlockPool(0, 16)
    assert [BlockPool(1, 16).blocks_for(tokens) for tokens in (1, 16, 17)] == [0, 0, 0]
    assert [BlockPool(2, 16).blocks_for(tokens) for tokens in (1, 16, 17)] == [1, 1, 2]


def test_a_published_block_is_found_while_held_and_after() -> None:
    pool = BlockPool(8, 2)
    chain = keys(3)
    blocks = publish(pool, chain)
    assert pool.match(chain) == blocks
    pool.free(blocks)
    assert pool.match(chain) == blocks
    assert (pool.num_free, pool.num_cached) == (7, 3)
    assert pool.count_free(blocks) == 3
    pool.share(blocks)
    assert pool.num_cached == 0 and pool.check_integrity([blocks]) == []


def test_a_match_ends_at_the_first_missing_block() -> None:
    pool = BlockPool(8, 2)
    chain = keys(3)
    first, _, third = publish(pool, chain)
    pool.forget([pool.match(chain)[1]])
    assert pool.match(chain) == [first]
    assert pool.is_published(third)


def test_a_hash_alone_is_no_hit() -> None:
    pool = BlockPool(8, 2)
    [key] = keys(1)
    publish(pool, [key])
    assert pool.match([BlockKey(key.hash, b"other tokens")]) == []


def test_blank_blocks_go_first_then_the_least_recently_freed_tail_first() -> None:
    pool = BlockPool(6, 2)
    old, new = publish(pool, keys(2, "old")), publish(pool, keys(2, "new"))
    pool.free(old)
    pool.free(new)
    taken = [pool.allocate() for _ in range(5)]
    assert taken == [5, old[1], old[0], new[1], new[0]]
    assert pool.match(keys(2, "new")) == []


def test_sharing_keeps_a_cached_block_from_going() -> None:
    pool = BlockPool(4, 2)
    first, second = publish(pool, keys(2))
    pool.free([first, second])
    pool.share([first])
    assert {pool.allocate(), pool.allocate()} == {3, second}
    assert pool.num_free == 0 and pool.match(keys(2)) == [first]


def test_of_two_blocks_with_one_key_the_first_stays_findable() -> None:
    pool = BlockPool(4, 2)
    [key] = keys(1)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, key)
    pool.publish(second, key)
    assert pool.match([key]) == [first] and not pool.is_published(second)
    pool.free([first, second])
    assert pool.num_cached == 1 and pool.check_integrity([]) == []


def test_a_shared_block_is_free_after_the_last_holder() -> None:
    pool = BlockPool(4, 2)
    block = pool.allocate()
    pool.share([block])
    pool.free([block])
    assert pool.references(block) == 1 and pool.num_free == 2
    pool.free([block])
    assert pool.num_free == 3
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free([block])


def test_a_forgotten_block_comes_back_blank() -> None:
    pool = BlockPool(4, 2)
    blocks = publish(pool, keys(2))
    pool.forget(blocks)
    pool.free(blocks)
    assert pool.match(keys(2)) == [] and pool.num_cached == 0
    assert pool.check_integrity([]) == []


def test_integrity_names_a_leak_and_a_stolen_block() -> None:
    pool = BlockPool(4, 2)
    held = pool.allocate()
    assert pool.check_integrity([]) == [f"block {held}: counted 1 times, held 0, free 0"]
    assert pool.check_integrity([[held], [3]]) != []
    assert pool.check_integrity([[held, held]]) != []
