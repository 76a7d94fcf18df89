"""The KV cache in words and numbers: how many tokens fit, and how many would in bfloat16."""

from typing import Final

from loraplex.engine.protocol import EngineInfo

EIGHT_BITS: Final = ("fp8_e4m3", "fp8_e5m2", "int8")


def tokens(info: EngineInfo) -> int:
    """That requests may hold."""
    return info.num_blocks * info.block_size


def bfloat16_tokens(info: EngineInfo) -> int:
    """That its bytes would hold in bfloat16."""
    return info.bfloat16_blocks * info.block_size


def dtype_words(info: EngineInfo) -> str:
    """The dtype; for 8 bits also what they gain."""
    if info.kv_cache_dtype not in EIGHT_BITS:
        return info.kv_cache_dtype
    return f"{info.kv_cache_dtype} (bfloat16 would hold {bfloat16_tokens(info):,})"
