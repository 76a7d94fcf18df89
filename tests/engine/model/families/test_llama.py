"""The Llama family by the checks of every family, so that these are proved themselves."""

from pathlib import Path

from transformers import LlamaConfig

from .parity import TOKENS, check_family, check_refuses_names_only, make_family


def test_llama(tmp_path: Path) -> None:
    config = LlamaConfig(
        **TOKENS, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    family = make_family(tmp_path, config)
    check_family(family)
    check_refuses_names_only(family, family.adapters["rank1"], "linear_attn.in_proj_qkv", tmp_path / "names")
