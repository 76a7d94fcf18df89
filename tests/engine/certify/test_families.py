"""Certificates of families with other layers than Llama's: what is certified is what the engine computes."""

from pathlib import Path
from typing import Any, Final

import pytest
import torch

from loraplex.engine.certify.run import certify
from loraplex.engine.text.tokenizer import Tokenizer
from tests.checkpoints import make_adapter
from tests.engine.model.families.parity import make_base

from . import test_run
from .test_reference_families import BASES
from .test_run import TEXTS, assert_near, figures, job_of, reference_logits, served_logits

ADAPTERS: Final[dict[str, dict[str, Any]]] = {
    "opt-projected": {"rank": 4, "kinds": ("project_in", "fc1", "v_proj"), "modules_to_save": ["self_attn_layer_norm"]},
    "gpt2-odd": {"rank": 4, "kinds": ("c_attn", "c_proj"), "fan_in_fan_out": True, "use_dora": True},
    "qwen3_5": {"rank": 4, "kinds": ("in_proj_qkv", "in_proj_b", "out_proj", "v_proj", "up_proj")},
}
QUANTIZED: Final = {"quantization": "int8", "kv_cache_dtype": "fp8_e4m3"}
LONGEST: Final = 90
"""Tokens of a prompt: the smallest of the models knows 96 positions."""


@pytest.mark.parametrize("family", ADAPTERS)
def test_a_certificate_is_of_what_the_engine_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    base = make_base(tmp_path / "base", BASES[family])
    adapter = make_adapter(tmp_path / "adapter", base, seed=2, **ADAPTERS[family])
    texts = [text[:LONGEST] for text in TEXTS]
    monkeypatch.setattr(test_run, "prompts", lambda base: [Tokenizer(base).encode(text)[:LONGEST] for text in texts])
    found = certify(job_of(base, adapter=str(adapter), prompts=texts, **QUANTIZED))
    reference = reference_logits(base, adapter)
    for own, settings in (
        (found.weights, {"quantization": "int8"}),
        (found.kv_cache, {"kv_cache_dtype": "fp8_e4m3"}),
        (found.both, QUANTIZED),
    ):
        served = served_logits(base, adapter, monkeypatch, **settings)
        assert_near(own, figures(reference, served, base))
    exact = certify(job_of(base, adapter=str(adapter), prompts=texts))
    assert exact.both.max_kl < 1e-6 < found.kv_cache.mean_kl
    assert torch.isfinite(reference).all()
