"""An engine with the kernels for CUDA on a machine without one: on CPU tensors, in triton's interpreter."""

from pathlib import Path
from typing import Any

import pytest

from loraplex import LLM
from loraplex.engine.config import EngineConfig
from loraplex.engine.model.decoder import Decoder

from .cuda_double import pretend_cuda

TINY: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside it, an engine on the CPU goes layer by layer: the same bits (test_fused.py) without a compiled step for
    each type of cache."""
    pretend_cuda(monkeypatch)
    monkeypatch.setattr(Decoder, "fuse", lambda decoder, cache: None)


SMALL: dict[str, Any] = {
    "max_model_len": 64, "num_kv_blocks": 24, "adapter_memory": 1 << 20, "adapter_host_memory": 0,
    "max_num_seqs": 4, "max_num_batched_tokens": 24, "max_loaded_adapters": 3, "num_threads": 1, "device": "cuda",
}  # fmt: skip


def open_llm(base: Path, adapters: dict[str, Path], **settings: Any) -> LLM:
    return LLM(base, adapters, **(SMALL | settings))


def small_config(base: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(model=str(base), **(SMALL | settings))
