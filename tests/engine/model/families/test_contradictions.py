"""config.json files that contradict themselves, or say of a model what is not computed: answered as transformers does,
or refused by name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from loraplex.engine.model.config import parse_config
from loraplex.engine.model.families.find import architectures

from .parity import check_mixed_batch, make_family
from .test_refused import config_of
from .tiny import TINY

LINEAR: Final = {"rope_type": "linear", "factor": 4.0}
YARN: Final = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
MISSING: Final = object()
AS_TRANSFORMERS: Final[list[tuple[str, Mapping[str, Any]]]] = [
    ("llama", {"rope_scaling": LINEAR}),
    ("qwen3_5", {"rope_scaling": LINEAR}),
    ("olmo3", {"rope_scaling": YARN | {"rope_theta": 300.0}}),
    ("ministral3", {"rms_norm_eps": MISSING}),
    ("smollm3", {"use_sliding_window": MISSING}),
    ("smollm3", {"use_sliding_window": False}),
    ("mistral", {"architectures": ["MistralForCausalLM"], "model_type": "ministral"}),
]
"""Of two fields the one that counts, and what holds where a field is missing."""
NO_ROPE: Final = ("opt", "opt-projected", "gpt2")
WINDOWED: Final = ("mistral", "ministral", "ministral3", "phi3", "olmo3", "smollm3")
WORDS: Final = [
    ("llama", {"attention_bias": "false"}, "give attention_bias as true or false, got 'false'"),
    ("llama", {"tie_word_embeddings": 1}, "give tie_word_embeddings as true or false, got 1"),
    ("llama", {"rms_norm_eps": float("nan")}, "give rms_norm_eps as a number, got nan"),
    ("llama", {"rope_parameters": {"rope_theta": -1.0}}, "give rope_theta as a number above 0"),
    ("qwen3", {"rope_scaling": LINEAR | {"factor": 0}}, "give factor as a number above 0"),
    ("llama", {"rope_scaling": LINEAR | {"factor": "4"}}, "give factor as a number, got '4'"),
    ("llama", {"rope_scaling": [1]}, "give rope parameters as an object"),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": "1"}, "give max_window_layers as a positive integer"),
    (
        "ministral3",
        {"layer_types": ["full_attention"] * 2},
        "layer_types has other layers than sliding_attention",
    ),
    ("olmo3", {"rope_parameters": LINEAR}, "must have an entry for full_attention and one for sliding_attention"),
    ("gemma2", {"attn_logit_softcapping": 0.0}, "give attn_logit_softcapping as a number above 0"),
    ("gemma3", {"final_logit_softcapping": -9.0}, "give final_logit_softcapping as a number above 0"),
    ("granite", {"attention_multiplier": 0}, "give attention_multiplier as a number above 0"),
    ("granite-hybrid", {"attention_multiplier": None}, "give attention_multiplier as a number, got None"),
    ("gemma4", {"per_layer_config": [{}]}, "per_layer_config must be an object"),
    ("gpt2", {"num_hidden_layers": 1}, "num_hidden_layers is 1 and n_layer 2, two names of one number"),
    ("gpt2", {"num_attention_heads": 2}, "num_attention_heads is 2 and n_head 4"),
    ("gpt2", {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types has sliding_attention"),
    ("opt", {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types has sliding_attention"),
]


@pytest.mark.parametrize(("family", "changes"), AS_TRANSFORMERS)
def test_answers_are_those_of_transformers(tmp_path: Path, family: str, changes: Mapping[str, Any]) -> None:
    def change(base: Path) -> None:
        said = json.loads((base / "config.json").read_text()) | changes
        said = {name: value for name, value in said.items() if value is not MISSING}
        (base / "config.json").write_text(json.dumps(said))

    check_mixed_batch(make_family(tmp_path, TINY[family], {}, change=change))


@pytest.mark.parametrize(("family", "changes", "words"), WORDS)
def test_what_is_wrong_is_refused_by_name(family: str, changes: dict[str, Any], words: str) -> None:
    refuse(config_of(family) | changes, words)


@pytest.mark.parametrize("family", TINY)
def test_a_model_that_sees_later_tokens_is_refused(family: str) -> None:
    refuse(config_of(family) | {"is_causal": False}, "is_causal false is not supported")
    parse_config(config_of(family) | {"is_causal": True}, {})


@pytest.mark.parametrize("family", [family for family in TINY if family not in NO_ROPE])
def test_a_missing_length_is_refused_by_name(family: str) -> None:
    raw = config_of(family)
    del raw["max_position_embeddings"]
    if not family.startswith("gemma"):  # these have a length where none is said
        refuse(raw, "give max_position_embeddings as a positive integer")


@pytest.mark.parametrize("family", ["llama", "mistral", "ministral", "qwen2", "qwen3", "granite", "glm", "gemma2"])
def test_a_length_that_is_said_twice_is_refused(family: str) -> None:
    raw = config_of(family) | {"rope_parameters": YARN}
    parse_config(raw | {"original_max_position_embeddings": 32}, {})
    refuse(raw | {"original_max_position_embeddings": 16}, "is 16 in config.json and 32 in its rope parameters")


@pytest.mark.parametrize("family", WINDOWED)
@pytest.mark.parametrize("window", [0, -1, "9", 9.0, True])
def test_windows_of_no_tokens_are_refused(family: str, window: object) -> None:
    refuse(config_of(family) | {"sliding_window": window}, "give sliding_window as a positive integer")


@pytest.mark.parametrize("family", TINY)
def test_another_models_type_is_refused(family: str) -> None:
    raw = config_of(family)
    parse_config(raw, {})
    for model_type in ("mamba", 7, "", "llama" if raw["model_type"] != "llama" else "mistral"):
        refuse(raw | {"model_type": model_type}, f"and the model_type {model_type!r}, which is another model's")
    del raw["model_type"]
    parse_config(raw, {})


def test_another_type_beside_a_larger_model_is_refused() -> None:
    for name in (name for name, found in architectures().items() if found.parts):
        raw = {"architectures": [name], "model_type": "llava", "text_config": {}}
        refuse(raw, f"architecture {name} and the model_type 'llava', which is another model's")


def refuse(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_config(raw, {})
