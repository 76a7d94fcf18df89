"""How a model is served, in the words of EngineInfo, before any engine has started. No torch."""

from typing import Final

from loraplex.quant.online_words import online_words

from .config import ModelConfig

AUTO: Final = "auto"


def quantization_words(model: ModelConfig, quantization: str, head_quantization: str, dtype: str) -> str:
    """What weights as they are served differ in from plain floats of the checkpoint's dtype; empty: in nothing."""
    own, stored = "" if model.quantization is None else model.quantization.words, stored_dtype(model, dtype)
    other_dtype = "" if stored == model.dtype else f"stored as {stored}"
    return "; ".join(filter(None, [own, online_words(quantization, head_quantization), other_dtype]))


def kv_cache_dtype_words(model: ModelConfig, kv_cache_dtype: str, dtype: str) -> str:
    """What `kv_cache_dtype` comes to with weights stored as `dtype` says."""
    return stored_dtype(model, dtype) if kv_cache_dtype == AUTO else kv_cache_dtype


def stored_dtype(model: ModelConfig, dtype: str) -> str:
    """What float weights are stored in."""
    return model.dtype if dtype == AUTO else dtype
