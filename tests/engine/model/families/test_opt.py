"""OPT in its three shapes, and GPT-2."""

from pathlib import Path

import pytest
from transformers import GPT2Config, OPTConfig

from .parity import ADAPTERS, TOKENS, check_family, check_refuses_names_only, make_family

OPT = {
    **TOKENS, "hidden_size": 48, "ffn_dim": 112, "num_hidden_layers": 2, "num_attention_heads": 3,
    "max_position_embeddings": 96, "word_embed_proj_dim": 48,
}  # fmt: skip
GPT2 = TOKENS | {"n_embd": 48, "n_layer": 2, "n_head": 3, "n_positions": 96}
NORMS = {"rank": 4, "kinds": ("fc1", "v_proj"), "modules_to_save": ["self_attn_layer_norm"]}
ENDS = {"rank": 4, "kinds": ("fc2", "embed_tokens")}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"do_layer_norm_before": False, "word_embed_proj_dim": 32},
        {"hidden_size": 80, "num_attention_heads": 5, "word_embed_proj_dim": 80, "enable_bias": False},
    ],
    ids=["125m", "350m", "13b"],
)
def test_opt(tmp_path: Path, changed: dict[str, object]) -> None:
    family = make_family(tmp_path, OPTConfig(**(OPT | changed)), {**ADAPTERS, "norms": NORMS, "ends": ENDS})
    check_family(family)
    check_refuses_names_only(family, family.adapters["rank1"], "mlp.fc1", tmp_path / "names")


@pytest.mark.parametrize(
    "changed",
    [{}, {"n_head": 2, "n_inner": 80, "scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False}],
    ids=["tied", "odd"],
)
def test_gpt2(tmp_path: Path, changed: dict[str, object]) -> None:
    some = {"rank": 4, "kinds": ("c_attn", "mlp.c_proj"), "modules_to_save": ["ln_1", "ln_f"], "fan_in_fan_out": True}
    family = make_family(tmp_path, GPT2Config(**(GPT2 | changed)), {**ADAPTERS, "some": some})
    check_family(family)
    check_refuses_names_only(family, family.adapters["rank1"], "attn.q_attn", tmp_path / "names")
