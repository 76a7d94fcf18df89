"""How many KV blocks fit. The arithmetic of start-up; the tensors belong to the attention backend."""

from dataclasses import dataclass
from typing import Final

import torch

from .config import EngineConfig
from .model.config import ModelConfig

SHARE: Final = 0.5
"""Of the free memory, when no budget is given: on a CPU the rest of the machine lives there too."""
MOST_BYTES: Final = 4 << 30
"""Cap on that share."""
AUTO: Final = "auto"
EIGHT_BITS: Final = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "int8": torch.int8}
SCALE_BYTES: Final = 2
"""Of a key or value of 8 bits in each KV head, unless scales are static."""


@dataclass(frozen=True, slots=True)
class KvCachePlan:
    num_blocks: int
    bytes: int
    bfloat16_blocks: int
    """What the same bytes would hold in bfloat16, the padding block included."""

    @property
    def num_usable(self) -> int:
        """Without the padding block."""
        return self.num_blocks - 1


def choose_cache_dtype(asked: str, stored: torch.dtype) -> torch.dtype:
    """kv_cache_dtype as a dtype; auto: that of the weights as they are stored. ValueError for any other word."""
    if asked == AUTO:
        return stored
    if asked not in EIGHT_BITS:
        raise ValueError(f"kv_cache_dtype {asked!r} is not supported; use {AUTO}, {', '.join(EIGHT_BITS)}")
    return EIGHT_BITS[asked]


def cache_dtype_name(dtype: torch.dtype) -> str:
    """As people set it, or as torch calls it."""
    names = {found: name for name, found in EIGHT_BITS.items()}
    return names.get(dtype, str(dtype).removeprefix("torch."))


def block_bytes(model: ModelConfig, block_size: int, dtype: torch.dtype, static_scales: bool = False) -> int:
    """Bytes of one block: keys and values of `block_size` tokens in every layer, with their scales if they have any."""
    head_bytes = model.head_dim * dtype.itemsize + (SCALE_BYTES if dtype.itemsize == 1 and not static_scales else 0)
    return 2 * model.num_layers * block_size * model.num_kv_heads * head_bytes


def blocks_of(tokens: int, block_size: int) -> int:
    """Blocks that `tokens` tokens of one sequence take."""
    return -(-tokens // block_size)


def plan_kv_cache(
    engine: EngineConfig,
    model: ModelConfig,
    max_model_len: int,
    dtype: torch.dtype,
    free_memory: int,
    static_scales: bool = False,
) -> KvCachePlan:
    """num_kv_blocks if given, else what kv_cache_memory holds, else what a share of `free_memory` holds.

    Without a budget never more than `max_num_seqs` sequences of full length could use. One block is kept as padding, so
    ValueError when not two fit.
    """
    per_block = block_bytes(model, engine.block_size, dtype, static_scales)
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
    total = num_blocks * per_block
    return KvCachePlan(num_blocks, total, total // block_bytes(model, engine.block_size, torch.bfloat16))
