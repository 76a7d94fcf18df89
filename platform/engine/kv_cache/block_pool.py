"""BlockPool: who holds which KV block, which free blocks still hold a reusable prefix, and which goes next."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from .prefix import BlockKey

PADDING_BLOCK: Final = 0
"""Never handed out: unused entries of a block table point here."""


class BlockPool:
    """Bookkeeping of `num_blocks` blocks of `block_size` tokens, the padding block included. Calls are O(1) a block.

    A block is *held* while its reference count is positive. A free block that was published stays findable until it is
    needed: the least recently freed goes first.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"the KV cache has {num_blocks} blocks and needs at least 2; give it more memory")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._references = [0] * num_blocks
        self._keys: list[BlockKey | None] = [None] * num_blocks
        self._blank = list(range(num_blocks - 1, PADDING_BLOCK, -1))
        self._reusable: OrderedDict[int, None] = OrderedDict()
        self._published: dict[bytes, int] = {}

    @property
    def num_usable(self) -> int:
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks nobody holds, the cached ones included."""
        return len(self._blank) + len(self._reusable)

    @property
    def num_cached(self) -> int:
        """Free blocks that still hold a reusable prefix."""
        return len(self._reusable)

    def references(self, block: int) -> int:
        return self._references[block]

    def is_published(self, block: int) -> bool:
        return self._keys[block] is not None

    def cached_blocks(self) -> Iterable[int]:
        return self._reusable.keys()

    def allocate(self) -> int:
        """Take a free block, a blank one first. The caller knows that there is one."""
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._reusable.popitem(last=False)
            self._unpublish(block)
        self._references[block] = 1
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that others hold or that are cached, once more."""
        for block in blocks:
            if self._references[block] == 0:
                del self._reusable[block]
            self._references[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Let go of a block table. Its tail becomes the older part: a prefix outlives what follows it."""
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} freed twice"
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._keys[block] is None:
                    self._blank.append(block)
                else:
                    self._reusable[block] = None

    def publish(self, block: int, key: BlockKey) -> None:
        """Make a held, full block findable. Where another block has the same key already, that one stays."""
        assert self._references[block] > 0
        if self._keys[block] is None and key.hash not in self._published:
            self._keys[block] = key
            self._published[key.hash] = block

    def match(self, keys: Iterable[BlockKey]) -> list[int]:
        """The longest run of published blocks with these keys. Nothing is held yet: share() what is used."""
        blocks: list[int] = []
        for key in keys:
            block = self._published.get(key.hash)
            if block is None or self._keys[block] != key:
                break
            blocks.append(block)
        return blocks

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of these blocks nobody holds: sharing them uses up free blocks."""
        return sum(self._references[block] == 0 for block in blocks)

    def forget(self, blocks: Iterable[int]) -> None:
        """Never find these held blocks again: their content cannot be trusted."""
        for block in blocks:
            assert self._references[block] > 0
            if self._keys[block] is not None:
                self._unpublish(block)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> list[str]:
        """Compare the books with the block tables of all live sequences; every difference in words."""
        held = Counter(block for table in tables for block in table)
        free = Counter([*self._blank, *self._reusable])
        problems = [
            f"block {block}: counted {self._references[block]} times, held {held[block]}, free {free[block]}"
            for block in range(1, self.num_blocks)
            if self._references[block] != held[block] or free[block] != (held[block] == 0)
        ]
        if held[PADDING_BLOCK] or free[PADDING_BLOCK]:
            problems.append("the padding block was handed out")
        keys = {key.hash: block for block, key in enumerate(self._keys) if key is not None}
        if keys != self._published or any(self._keys[block] is not None for block in self._blank):
            problems.append("the index of published blocks does not match the blocks")
        return problems

    def _unpublish(self, block: int) -> None:
        key = self._keys[block]
        assert key is not None
        del self._published[key.hash]
        self._keys[block] = None
