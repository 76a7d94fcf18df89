"""The KV cache in words and numbers: how many tokens fit, and how many would in bfloat16."""

from typing import Final

from loraplex.engine.protocol import EngineInfo, EngineStatus
from loraplex.engine.status import Clipping

from ..units import count_words

EIGHT_BITS: Final = ("fp8_e4m3", "fp8_e5m2", "int8")
LEAST_PERCENT: Final = 0.001
"""A smaller share is not told exactly."""


def tokens(info: EngineInfo) -> int:
    """That requests may hold."""
    return info.num_blocks * info.block_size


def bfloat16_tokens(info: EngineInfo) -> int:
    """That its bytes would hold in bfloat16."""
    return info.bfloat16_blocks * info.block_size


def held_states(info: EngineInfo, status: EngineStatus) -> int:
    """Recurrent states that requests hold."""
    return info.num_states - status.free_states


def state_words(info: EngineInfo, status: EngineStatus) -> str:
    """How many recurrent states are held, and how many snapshots are kept for the prefix cache."""
    snapshots = count_words(status.cached_states, "snapshot")
    return f"{held_states(info, status):,} of {info.num_states:,} states, {snapshots} reusable"


def dtype_words(info: EngineInfo) -> str:
    """The dtype; for 8 bits also what they gain."""
    if info.kv_cache_dtype not in EIGHT_BITS:
        return info.kv_cache_dtype
    return f"{info.kv_cache_dtype} (bfloat16 would hold {bfloat16_tokens(info):,})"


def written_values(info: EngineInfo, clipping: Clipping) -> int:
    """Numbers of keys and values that were stored with static scales."""
    return clipping.tokens * info.kv_values_per_token


def clipping_words(info: EngineInfo | None, clipping: Clipping | None) -> str | None:
    """A warning for people; None while static scales clip nothing."""
    if info is None or clipping is None or not clipping.clipped_values:
        return None
    share = 100 * clipping.clipped_values / written_values(info, clipping)
    percent = f"{share:.2g}" if share >= LEAST_PERCENT else f"less than {LEAST_PERCENT:g}"
    return f"{percent} % of this adapter's keys and values are clipped by the static scales of the KV cache."
