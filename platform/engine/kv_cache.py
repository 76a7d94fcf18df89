"""How many KV blocks fit. The arithmetic of start-up; the tensors belong to the attention backend."""

from dataclasses import dataclass
from typing import Final

from .config import EngineConfig
from .model.config import ModelConfig

SHARE: Final = 0.5
"""Of the free memory, when no budget is given: on a CPU the rest of the machine lives there too."""
MOST_BYTES: Final = 4 << 30
"""Cap on that share."""


@dataclass(frozen=True, slots=True)
class KvCachePlan:
    num_blocks: int
    bytes: int

    @property
    def num_usable(self) -> int:
        """Without the padding block."""
        return self.num_blocks - 1


def block_bytes(model: ModelConfig, block_size: int, item_bytes: int) -> int:
    """Bytes of one block: keys and values of `block_size` tokens in every layer."""
    return 2 * model.num_layers * block_size * model.num_kv_heads * model.head_dim * item_bytes


def blocks_of(tokens: int, block_size: int) -> int:
    """Blocks that `tokens` tokens of one sequence take."""
    return -(-tokens // block_size)


def plan_kv_cache(
    engine: EngineConfig, model: ModelConfig, max_model_len: int, item_bytes: int, free_memory: int
) -> KvCachePlan:
    """num_kv_blocks if given, else what kv_cache_memory holds, else what a share of `free_memory` holds.

    Without a budget never more than `max_num_seqs` sequences of full length could use. One block is kept as padding, so
    ValueError when not two fit.
    """
    per_block = block_bytes(model, engine.block_size, item_bytes)
    if engine.num_kv_blocks is not None:
        num_blocks = engine.num_kv_blocks
    elif engine.kv_cache_memory is not None:
        num_blocks = engine.kv_cache_memory // per_block
    else:
        useful = 1 + engine.max_num_seqs * blocks_of(max_model_len, engine.block_size)
        num_blocks = min(useful, min(int(free_memory * SHARE), MOST_BYTES) // per_block)
    if num_blocks < 2:
        raise ValueError(
            f"the KV cache needs 2 blocks of {engine.block_size} tokens, {per_block:,} bytes each, and has room "
            f"for {num_blocks}; raise num_kv_blocks or kv_cache_memory, or free memory ({free_memory:,} bytes are free)"
        )
    return KvCachePlan(num_blocks, num_blocks * per_block)
