"""The reference against transformers + peft where layers are not as Llama's, with adapters of all that these have."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from transformers import GPT2Config, OPTConfig, PretrainedConfig, Qwen3_5TextConfig

from tests.checkpoints import make_adapter
from tests.engine.model.families.parity import TOKENS, make_base
from tests.engine.model.families.test_qwen3_5 import ODD
from tests.engine.model.families.tiny import LINEARS, TINY

from .test_reference import assert_same

OPT: Final[dict[str, Any]] = {
    **TOKENS, "hidden_size": 48, "ffn_dim": 112, "num_hidden_layers": 2, "num_attention_heads": 3,
    "max_position_embeddings": 96, "word_embed_proj_dim": 48,
}  # fmt: skip
GPT2: Final[dict[str, Any]] = {**TOKENS, "n_embd": 48, "n_layer": 2, "n_head": 3, "n_positions": 96}
BASES: Final[Mapping[str, PretrainedConfig]] = {
    "opt": OPTConfig(**OPT),
    "opt-projected": OPTConfig(**OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "gpt2": GPT2Config(**GPT2),
    "gpt2-odd": GPT2Config(
        **GPT2 | {"n_inner": 80, "scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False}
    ),
    "qwen3_5": Qwen3_5TextConfig(**ODD),
}
ALL: Final = {"rank": 5, "kinds": "all-linear"}
ACTIVATED: Final = {"alora_invocation_tokens": [310]}
ENDS: Final = {"rank": 3, "kinds": ("project_in", "project_out", "fc2", "lm_head")}
ACTIVATED_ENDS: Final = ENDS | ACTIVATED | {"kinds": ("project_in", "project_out", "v_proj", "lm_head")}
"""peft cannot activate fc1 and fc2, which get the tokens of all sequences in one row."""
GPT2_NORMS: Final = {"rank": 4, "kinds": ("c_attn", "mlp.c_proj"), "modules_to_save": ["ln_1", "ln_f"]}
QWEN_LINEARS: Final = ("in_proj_qkv", "in_proj_a", "in_proj_z", "out_proj", "q_proj", "up_proj")
CASES: Final[Mapping[str, tuple[str, Mapping[str, Any] | None]]] = {
    "opt": ("opt", None),
    "opt-dora": ("opt", ALL | {"use_dora": True}),
    "opt-norms": ("opt", ALL | {"modules_to_save": ["self_attn_layer_norm", "layers.1.final_layer_norm"]}),
    "opt-biases": ("opt", {"rank": 4, "kinds": ("fc1", "q_proj"), "bias": "all"}),
    "opt-saved-embedding": ("opt", {"rank": 2, "kinds": ("fc1",), "modules_to_save": ["embed_tokens"]}),
    "opt-activated": ("opt", {"rank": 4, "kinds": ("q_proj", "v_proj", "out_proj")} | ACTIVATED),
    "opt-projected": ("opt-projected", None),
    "opt-projected-ends": ("opt-projected", ENDS),
    "opt-projected-ends-dora": ("opt-projected", ENDS | {"use_dora": True}),
    "opt-projected-ends-activated": ("opt-projected", ACTIVATED_ENDS),
    "gpt2": ("gpt2", None),
    "gpt2-all": ("gpt2", ALL | {"use_dora": True, "fan_in_fan_out": True}),
    "gpt2-norms": ("gpt2", GPT2_NORMS | {"fan_in_fan_out": True}),
    "gpt2-embedding": ("gpt2", {"rank": 4, "kinds": ("wte", "c_fc"), "fan_in_fan_out": True}),
    "gpt2-odd": ("gpt2-odd", None),
    "gpt2-odd-head": ("gpt2-odd", {"rank": 4, "kinds": ("lm_head", "c_fc")}),
    "qwen3_5": ("qwen3_5", None),
    "qwen3_5-all": ("qwen3_5", ALL | {"use_dora": True, "use_rslora": True}),
    "qwen3_5-activated": ("qwen3_5", {"rank": 4, "kinds": QWEN_LINEARS} | ACTIVATED),
    "qwen3_5-norms": (
        "qwen3_5", {"rank": 4, "kinds": ("out_proj",), "modules_to_save": ["input_layernorm", "q_norm", "model.norm"]},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize("case", CASES)
def test_the_reference_equals_transformers_and_peft(folders: Path, tmp_path: Path, case: str) -> None:
    name, how = CASES[case]
    base = folders / name
    if not base.is_dir():
        make_base(base, BASES[name])
    assert_same(base, None if how is None else make_adapter(tmp_path / "adapter", base, seed=3, **how))


@pytest.mark.parametrize("family", TINY)
def test_the_reference_of_every_family_equals_transformers_and_peft(tmp_path: Path, family: str) -> None:
    base = make_base(tmp_path / "base", TINY[family])
    assert_same(base, None)
    how = {**ALL, "kinds": LINEARS.get(family, ALL["kinds"])}
    assert_same(base, make_adapter(tmp_path / "adapter", base, seed=3, **how, use_dora=True))
