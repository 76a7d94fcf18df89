"""BlockPool: the KV blocks. A sequence holds a table of them, and shares those of a prefix that was computed before."""

from collections.abc import Iterable
from typing import ClassVar, Final

from .keyed_pool import PADDING, KeyedPool
from .prefix import BlockKey

PADDING_BLOCK: Final = PADDING
"""Unused entries of a block table point here."""


class BlockPool(KeyedPool):
    """Of blocks of `block_size` tokens. A full block is published with the key of all tokens up to its end. With the
    padding block alone it stores nothing, and sequences take none."""

    NAME: ClassVar[str] = "block"

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"the KV cache has {num_blocks} blocks and needs at least the one that pads")
        super().__init__(num_blocks)
        self.num_blocks = num_blocks
        self.block_size = block_size

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks a sequence of so many tokens takes."""
        return -(-num_tokens // self.block_size) if self.num_usable else 0

    def match(self, keys: Iterable[BlockKey]) -> list[int]:
        """The longest run of published blocks with these keys. Nothing is held yet: share() what is used."""
        blocks: list[int] = []
        for key in keys:
            block = self.find(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of these blocks nobody holds: sharing them uses up free blocks."""
        return sum(self.references(block) == 0 for block in blocks)
