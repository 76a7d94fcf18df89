"""How a model is served, in the words of EngineInfo, before any engine has started. No torch."""

from typing import Final

from loraplex.quant.online_words import online_words

from .config import ModelConfig

AUTO: Final = "auto"


def quantization_words(model: ModelConfig, quantization: str, head_quantization: str) -> str:
    """Of the checkpoint and of what is rounded at load; empty for floats."""
    own = "" if model.quantization is None else model.quantization.words
    return "; ".join(filter(None, [own, online_words(quantization, head_quantization)]))


def kv_cache_dtype_words(model: ModelConfig, kv_cache_dtype: str, dtype: str) -> str:
    """What `kv_cache_dtype` comes to with weights stored as `dtype` says."""
    if kv_cache_dtype != AUTO:
        return kv_cache_dtype
    return model.dtype if dtype == AUTO else dtype
