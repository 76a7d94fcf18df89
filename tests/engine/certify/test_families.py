"""Certificates of every family: what is certified is what the engine computes."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from loraplex.engine.certify.certificate import Certificate
from loraplex.engine.certify.run import certify
from loraplex.engine.text.tokenizer import Tokenizer
from tests.checkpoints import make_adapter
from tests.engine.model.families.parity import make_base
from tests.engine.model.families.tiny import LINEARS, TINY

from . import test_run
from .test_run import TEXTS, assert_near, figures, job_of, reference_logits, served_logits

OWN: Final[dict[str, dict[str, Any]]] = {
    "opt-projected": {"kinds": ("project_in", "fc1", "v_proj"), "modules_to_save": ["self_attn_layer_norm"]},
    "gpt2": {"kinds": ("c_attn", "c_proj"), "fan_in_fan_out": True, "use_dora": True},
    "qwen3_5": {"kinds": ("in_proj_qkv", "in_proj_b", "out_proj", "v_proj", "up_proj")},
    "gemma3": {"kinds": ("embed_tokens", "o_proj"), "modules_to_save": ["q_norm", "post_feedforward_layernorm"]},
    "gemma4": {"kinds": ("per_layer_input_gate", "down_proj"), "modules_to_save": ["post_per_layer_input_norm"]},
}
"""Adapters of modules that other families do not have; else they are on all linears."""
QUANTIZED: Final = {"quantization": "int8", "kv_cache_dtype": "fp8_e4m3"}
LONGEST: Final = 50
"""Tokens of a prompt: within longrope's original length."""


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts = [text[:LONGEST] for text in TEXTS]
    monkeypatch.setattr(test_run, "prompts", lambda base: [Tokenizer(base).encode(text)[:LONGEST] for text in texts])
    return texts


@pytest.mark.parametrize("family", TINY)
def test_a_certificate_is_of_what_the_engine_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], family: str
) -> None:
    base = make_base(tmp_path / "base", TINY[family])
    adapter = make_adapter(
        tmp_path / "adapter",
        base,
        seed=2,
        rank=4,
        **OWN.get(family, {"kinds": LINEARS.get(family, "all-linear"), "use_dora": True}),
    )
    found = certify(job_of(base, adapter=str(adapter), prompts=texts, **QUANTIZED))
    reference = reference_logits(base, adapter)
    served = served_logits(base, adapter, monkeypatch, **QUANTIZED)
    assert_near(found.both, figures(reference, served, base))
    assert found.kv_cache.mean_kl > 1e-6 < found.weights.mean_kl
    assert torch.isfinite(reference).all()


def test_a_certificate_names_the_set_of_longropes_factors_that_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str]
) -> None:
    """The reference of sequences that long factors turn is transformers with long factors alone."""
    base = make_base(tmp_path / "base", TINY["phi3-longrope"])
    found: dict[str, Certificate] = {}
    for name, length in (("short", 60), ("long", 61)):
        settings: dict[str, Any] = {"max_model_len": length, "quantization": "int8"}
        found[name] = certify(job_of(base, prompts=texts, **settings))
        assert found[name].coverage.positions == f"longrope's {name} factors"
        served = served_logits(base, None, monkeypatch, **settings)
        assert_near(
            found[name].both, figures(reference_logits(_with_factors(base, name, tmp_path), None), served, base)
        )
    assert found["short"].coverage.changes(found["long"].coverage) == [
        "what turns positions (longrope's short factors, now longrope's long factors)"
    ]
    assert certify(job_of(base, prompts=texts)).coverage.positions == "longrope's short factors"


def _with_factors(base: Path, name: str, folder: Path) -> Path:
    """The checkpoint with one set of factors for any length."""
    copy = folder / name
    shutil.copytree(base, copy)
    config = json.loads((copy / "config.json").read_text())
    own = config["rope_parameters"][f"{name}_factor"]
    config["rope_parameters"] |= {"short_factor": own, "long_factor": own}
    (copy / "config.json").write_text(json.dumps(config))
    return copy
