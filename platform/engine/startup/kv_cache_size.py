"""How many KV blocks and recurrent states fit. The arithmetic of start-up; the tensors belong to the backends."""

from dataclasses import dataclass
from typing import Final

import torch

from ..attention.layer import LayerAttention
from ..config import EngineConfig
from ..delta_net.shape import StateShape
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
"""One of them is padding. So with slots of states."""
STATES_PER_SEQUENCE: Final = 2
"""Slots that are of use: of its own state, and of a snapshot."""
STATE_SHARE: Final = 0.5
"""Most that slots of states take of the memory for both caches."""


@dataclass(frozen=True, slots=True)
class KvCachePlan:
    num_blocks: int
    bytes: int
    bfloat16_blocks: int
    """What the same bytes would hold in bfloat16, the padding block included."""
    num_slots: int = 0
    """Of recurrent states, the padding one included; 0 for a model without such layers."""
    slot_bytes: int = 0

    @property
    def state_bytes(self) -> int:
        return self.num_slots * self.slot_bytes

    @property
    def num_states(self) -> int:
        """Without the padding slot."""
        return max(0, self.num_slots - 1)

    @property
    def num_usable(self) -> int:
        """Without the padding block."""
        return self.num_blocks - 1


NO_CACHE: Final = KvCachePlan(1, 0, 1)
"""Of a model whose prompts are computed at once: the padding block, of no size."""


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
            number=number,
            num_heads=mixer.num_heads,
            num_kv_heads=mixer.num_kv_heads,
            head_dim=mixer.head_dim,
            scale=mixer.scale,
            window=mixer.window,
            is_causal=mixer.is_causal,
            soft_cap=mixer.soft_cap,
            sinks=mixer.sinks is not None,
            keys_of=None if mixer.keys_of is None else places[mixer.keys_of],
        )
        for number, mixer in model.spec.attention_layers()
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
    if not model.spec.keeps_keys:
        return NO_CACHE
    per_block = block_bytes(model, engine.block_size, dtype, static_scales)
    useful = 1 + engine.max_num_seqs * blocks_of(max_model_len, engine.block_size)
    wanted = useful * per_block + most_slots(engine) * state_bytes(model)
    room = min(wanted, int(free_memory * SHARE), MOST_BYTES)
    plan = plan_blocks(engine, model, dtype, room, static_scales, useful)
    if plan.num_blocks < LEAST_BLOCKS:
        raise ValueError(
            f"the KV cache needs {LEAST_BLOCKS} blocks of {engine.block_size} tokens, {per_block:,} bytes each, and "
            f"has room for {plan.num_blocks}; raise num_kv_blocks or kv_cache_memory, or free memory ({free_memory:,} "
            f"bytes are free)"
        )
    return plan


def plan_blocks(
    engine: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    room: int,
    static_scales: bool = False,
    useful: int | None = None,
) -> KvCachePlan:
    """num_kv_blocks if given, else what kv_cache_memory holds, else what `room` bytes hold: on any device. States come
    out of the same bytes: no more than STATE_SHARE of them, or than what `useful` blocks leave."""
    per_block = block_bytes(model, engine.block_size, dtype, static_scales)
    budget = room if engine.kv_cache_memory is None else engine.kv_cache_memory
    left = 0 if useful is None else budget - useful * per_block
    num_slots, slot_bytes = plan_slots(engine, state_bytes(model), budget, left), state_bytes(model)
    left = budget - num_slots * slot_bytes
    num_blocks = left // per_block if engine.num_kv_blocks is None else engine.num_kv_blocks
    total = num_blocks * per_block
    in_bfloat16 = total // block_bytes(model, engine.block_size, torch.bfloat16)
    return KvCachePlan(num_blocks, total, in_bfloat16, num_slots, slot_bytes)


def state_layers(model: ModelConfig) -> list[StateShape]:
    """What a sequence keeps in each recurrent layer."""
    return [
        StateShape(
            num_key_heads=mixer.num_key_heads,
            num_value_heads=mixer.num_value_heads,
            key_head_dim=mixer.key_head_dim,
            value_head_dim=mixer.value_head_dim,
            conv_kernel=mixer.kernel_size,
        )
        for mixer in model.spec.recurrent_layers()
    ]


def state_bytes(model: ModelConfig) -> int:
    """Bytes of one slot: the state of a sequence in all recurrent layers; 0 without any."""
    return sum(shape.slot_bytes for shape in state_layers(model))


def most_slots(engine: EngineConfig) -> int:
    """That are of use."""
    return 1 + STATES_PER_SEQUENCE * engine.max_num_seqs


def plan_slots(engine: EngineConfig, slot_bytes: int, budget: int, left: int = 0) -> int:
    """num_state_slots if given, else as many as are of use and take no more than STATE_SHARE of `budget` bytes, or
    `left` bytes. ValueError when not even one sequence has its state."""
    if not slot_bytes:
        return 0
    num_slots = min(most_slots(engine), max(left, int(budget * STATE_SHARE)) // slot_bytes)
    num_slots = num_slots if engine.num_state_slots is None else engine.num_state_slots
    if num_slots < LEAST_BLOCKS:
        raise ValueError(
            f"the states of recurrent layers need {LEAST_BLOCKS} slots, {slot_bytes:,} bytes each, and half of the "
            f"cache memory of {budget:,} bytes has room for {num_slots}; raise kv_cache_memory or num_state_slots"
        )
    return num_slots
