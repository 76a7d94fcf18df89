"""How a model is served, in the words of EngineInfo, before any engine has started. No torch."""

import hashlib
import json
from pathlib import Path
from typing import Final

from loraplex.quant.config.online_words import online_words

from ..config import EngineConfig
from .config import ModelConfig

AUTO: Final = "auto"
DYNAMIC: Final = "dynamic"


def quantization_words(model: ModelConfig, engine: EngineConfig) -> str:
    """What weights as they are served differ in from plain floats of the checkpoint's dtype; empty: in nothing."""
    own, stored = "" if model.quantization is None else model.quantization.words, stored_dtype(model, engine.dtype)
    other_dtype = "" if stored == model.dtype else f"stored as {stored}"
    return "; ".join(filter(None, [own, online_words(engine.quantization, engine.head_quantization), other_dtype]))


def kv_cache_words(model: ModelConfig, engine: EngineConfig) -> str:
    """What keys and values are stored in, and with which static scales. Those of the checkpoint are part of the base.
    ValueError for a file that cannot be read."""
    kv_cache_dtype, scales = engine.kv_cache_dtype, engine.kv_cache_scales
    if kv_cache_dtype == AUTO:
        return stored_dtype(model, engine.dtype)
    if engine.kv_scales_file and scales != DYNAMIC:
        content = _read(Path(engine.kv_scales_file))
        if _made_for(content) == kv_cache_dtype:
            return f"{kv_cache_dtype}, scales {hashlib.sha256(content).hexdigest()[:16]}"
    return kv_cache_dtype if scales == AUTO else f"{kv_cache_dtype}, {scales} scales"


def positions_words(model: ModelConfig, engine: EngineConfig) -> str:
    """Which of longrope's sets of factors turns all sequences; empty: the model has one way."""
    if model.rope_border is None:
        return ""
    return f"longrope's {'long' if model.length(engine.max_model_len) > model.rope_border else 'short'} factors"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"the static scales in {path} cannot be read: {error.strerror}") from error


def _made_for(content: bytes) -> str:
    """The dtype of the cache that a file of static scales (`startup/scales_file.py`) is for; empty: another file."""
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return str(header["__metadata__"]["kv_cache_dtype"])
    except (ValueError, KeyError, TypeError):
        return ""


def stored_dtype(model: ModelConfig, dtype: str) -> str:
    """What float weights are stored in."""
    return model.dtype if dtype == AUTO else dtype
