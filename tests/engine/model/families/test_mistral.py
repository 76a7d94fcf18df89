"""Ministral 3, whose queries grow with the position, and Mistral 3: folders of which the text part is served."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import Ministral3Config, Mistral3Config, Mistral3ForConditionalGeneration

from loraplex import LLM, SamplingParams
from loraplex.engine.model.config import ModelConfig, parse_config
from loraplex.engine.model.loader import Checkpoint
from tests.checkpoints import make_tokenizer

from .parity import (
    ADAPTERS,
    NEW_TOKENS,
    TOKENS,
    check_family,
    check_refuses_names_only,
    make_family,
    spread,
    tokens,
)

SHAPE: dict[str, Any] = TOKENS | {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.4,
}
OWN = {
    "part": {"rank": 4, "kinds": ("q_proj", "down_proj")},
    "norms": {"rank": 4, "kinds": ("v_proj",), "modules_to_save": ["post_attention_layernorm", "model.norm"]},
}
VISION = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 16,
}
ON_THE_HUB = {
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}
KINDS = ["q_proj", "o_proj", "up_proj"]


def test_ministral_3(tmp_path: Path) -> None:
    family = make_family(tmp_path, Ministral3Config(**SHAPE, rope_parameters=dict(ROPE)), dict(ADAPTERS) | OWN)
    check_family(family)
    check_refuses_names_only(family, family.adapters["part"], "self_attn.qkv_proj", tmp_path / "names")


def test_ministral_3_with_a_window(tmp_path: Path) -> None:
    own = {"sliding_window": 9, "head_dim": 24, "tie_word_embeddings": True}
    family = make_family(tmp_path, Ministral3Config(**SHAPE | own, rope_parameters=dict(ROPE)), OWN)
    check_family(family)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("text", ["mistral", "ministral3"])
def test_the_folder_of_mistral_3(tmp_path: Path, text: str, is_tied: bool) -> None:
    """With vision beside, named as transformers saves it and as the hub has it, and an adapter of the whole model."""
    own = {"model_type": text, "sliding_window": None} | ({"rope_parameters": ROPE} if text == "ministral3" else {})
    config = Mistral3Config(text_config=SHAPE | own, vision_config=VISION, tie_word_embeddings=is_tied)
    torch.manual_seed(0)
    whole = Mistral3ForConditionalGeneration(config).eval()
    spread(whole)
    saved, hub, prompt = tmp_path / "saved", tmp_path / "hub", list(range(5, 40))
    whole.save_pretrained(saved)
    make_tokenizer(saved)
    _as_on_the_hub(saved, hub, whole)
    targets = rf".*language_model.*({'|'.join(KINDS)})"
    adapted = get_peft_model(whole, LoraConfig(r=6, target_modules=targets, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.4 / parameter.shape[1] ** 0.5)
    adapted.save_pretrained(tmp_path / "adapter")
    _list_targets(tmp_path / "adapter")
    expected = [_greedy(adapted, prompt)]
    with adapted.disable_adapter():
        expected.append(_greedy(adapted, prompt))
    assert expected[0] != expected[1]
    for base in (saved, hub):
        left_out = Checkpoint(base, ModelConfig.from_folder(base).spec).left_out
        assert set(left_out) == {"the vision encoder", "the projector of images"}
        with LLM(base, {"one": tmp_path / "adapter"}, max_model_len=80, num_kv_blocks=64, num_threads=1) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
            assert tokens(llm.generate([prompt] * 2, params, adapter=["one", None], use_tqdm=False)) == expected


def _as_on_the_hub(saved: Path, folder: Path, whole: Mistral3ForConditionalGeneration) -> None:
    folder.mkdir()
    for file in saved.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    stored = load_file(saved / "model.safetensors")
    tensors = {name: tensor.contiguous() for name, tensor in whole.state_dict().items()}
    if len(stored) < len(tensors):
        del tensors["lm_head.weight"]
    renamed = {_renamed(name): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})


def _renamed(name: str) -> str:
    ours = next(start for start in ON_THE_HUB if name.startswith(start))
    return ON_THE_HUB[ours] + name.removeprefix(ours)


def _list_targets(adapter: Path) -> None:
    """A list in the place of the pattern, as uploads must have."""
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"target_modules": KINDS}))


@torch.inference_mode()
def _greedy(model: Any, prompt: list[int]) -> list[int]:
    ids = list(prompt)
    for _ in range(NEW_TOKENS):
        ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_a_null_of_the_text_part_counts() -> None:
    """A model without windows says so by null; the default of this family is a window."""
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": SHAPE | {"sliding_window": None}}
    assert parse_config(whole, {}).attention.window is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rope_parameters": ROPE | {"llama_4_scaling_beta": None}}, "llama_4_scaling_beta as a number"),
        ({"rope_parameters": ROPE | {"rope_type": "mrope"}}, "rope scaling 'mrope' is not supported"),
        ({"layer_types": ["mamba"] * 2}, "layer_types has mamba, which is not supported"),
        ({"hidden_act": "xielu"}, "hidden_act 'xielu' is not supported"),
    ],
)
def test_what_is_not_supported_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_config(SHAPE | {"architectures": ["Ministral3ForCausalLM"], "rope_parameters": ROPE} | wrong, {})
