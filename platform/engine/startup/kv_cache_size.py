"""How many KV blocks fit. The arithmetic of start-up; the tensors belong to the attention backend."""

from dataclasses import dataclass
from typing import Final

import torch

from ..attention.layer import LayerAttention
from ..config import EngineConfig
from ..model.config import ModelConfig

SHARE: Final = 0.5
"""Of the free memory, when no budget is given: on a CPU the rest of the machine lives there too."""
MOST_BYTES: Final = 4 << 30
"""Cap on that share."""
AUTO: Final = "auto"
EIGHT_BITS: Final = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "int8": torch.int8}
SCALE_BYTES: Final = 2
"""Of a key or value of 8 bits in each KV head, unless scales are static."""
LEAST_BLOCKS: Final = 2
"""One of them is padding."""


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
    scale_bytes = SCALE_BYTES if dtype.itemsize == 1 and not static_scales else 0
    return block_size * sum(
        layer.numbers_per_token * dtype.itemsize + layer.numbers_per_token // layer.head_dim * scale_bytes
        for layer in attention_layers(model)
    )


def attention_layers(model: ModelConfig) -> tuple[LayerAttention, ...]:
    """How each layer that attends does so."""
    places = {number: place for place, (number, _) in enumerate(model.spec.attention_layers())}
    return tuple(
        LayerAttention(
            num_heads=mixer.num_heads,
            num_kv_heads=mixer.num_kv_heads,
            head_dim=mixer.head_dim,
            scale=mixer.scale,
            window=mixer.window,
            soft_cap=mixer.soft_cap,
            sinks=mixer.sinks is not None,
            keys_of=None if mixer.keys_of is None else places[mixer.keys_of],
        )
        for _, mixer in model.spec.attention_layers()
    )


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
    """In the host's memory: `plan_blocks` with a share of `free_memory`, for no more than `max_num_seqs` sequences of
    full length. ValueError when not LEAST_BLOCKS fit."""
    per_block = block_bytes(model, engine.block_size, dtype, static_scales)
    useful = 1 + engine.max_num_seqs * blocks_of(max_model_len, engine.block_size)
    room = min(useful * per_block, int(free_memory * SHARE), MOST_BYTES)
    plan = plan_blocks(engine, model, dtype, room, static_scales)
    if plan.num_blocks < LEAST_BLOCKS:
        raise ValueError(
            f"the KV cache needs {LEAST_BLOCKS} blocks of {engine.block_size} tokens, {per_block:,} bytes each, and "
            f"has room for {plan.num_blocks}; raise num_kv_blocks or kv_cache_memory, or free memory ({free_memory:,} "
            f"bytes are free)"
        )
    return plan


def plan_blocks(
    engine: EngineConfig, model: ModelConfig, dtype: torch.dtype, room: int, static_scales: bool = False
) -> KvCachePlan:
    """num_kv_blocks if given, else what kv_cache_memory holds, else what `room` bytes hold: on any device."""
    per_block = block_bytes(model, engine.block_size, dtype, static_scales)
    budget = room if engine.kv_cache_memory is None else engine.kv_cache_memory
    num_blocks = budget // per_block if engine.num_kv_blocks is None else engine.num_kv_blocks
    total = num_blocks * per_block
    return KvCachePlan(num_blocks, total, total // block_bytes(model, engine.block_size, torch.bfloat16))
