"""Qwen3.5 and 3.6, dense: gated delta nets between layers of gated attention. Also as the folder of the whole model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration, Qwen3_5TextConfig
from transformers.models.auto import AutoModelForCausalLM

from loraplex import LLM, SamplingParams
from loraplex.engine.model.config import ModelConfig, parse_config
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.offline.beam_search import BeamSearchParams
from tests.checkpoints import make_tokenizer

from .parity import (
    NEW_TOKENS,
    TOKENS,
    Family,
    check_family,
    check_refuses_names_only,
    make_family,
    open_llm,
    run,
    spread,
    tokens,
)

WHOLE_VECTORS: dict[str, Any] = {
    **TOKENS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 48,
    "max_position_embeddings": 128,
}
"""Three delta nets, then attention with 16 of 64 dimensions turned."""
ODD: dict[str, Any] = WHOLE_VECTORS | {
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "linear_attention", "full_attention"],
    "head_dim": 32,
    "num_key_value_heads": 1,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 3,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "linear_conv_kernel_dim": 3,
    "tie_word_embeddings": True,
    "attention_bias": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
}


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return make_family(tmp_path_factory.mktemp("qwen3_5"), Qwen3_5TextConfig(**WHOLE_VECTORS))


def test_the_checks_of_every_family(family: Family, tmp_path: Path) -> None:
    check_family(family)
    check_refuses_names_only(family, family.adapters["rank1"], "linear_attn.in_proj_ba", tmp_path / "names")


def test_odd_sizes(tmp_path: Path) -> None:
    check_family(make_family(tmp_path, Qwen3_5TextConfig(**ODD)))


def test_few_states_change_no_token(family: Family) -> None:
    """Two sequences at a time with a slot for one snapshot, and one by one with none."""
    for slots in (4, 2):
        with open_llm(family, num_state_slots=slots, max_num_batched_tokens=16, max_num_seqs=8) as llm:
            assert tokens(run(llm, family)) == tokens(run(llm, family)) == family.tokens
            status = llm.status()
            assert status.free_states == slots - 1 and status.integrity_errors == 0


@pytest.mark.parametrize(
    "settings", [{"quantization": "int4"}, {"quantization": "int8", "kv_cache_dtype": "fp8_e4m3"}], ids=str
)
def test_rounded_weights_and_keys_answer_alike_in_any_steps(family: Family, settings: dict[str, Any]) -> None:
    with open_llm(family, **settings) as llm:
        whole, again = tokens(run(llm, family)), tokens(run(llm, family))
    with open_llm(family, max_num_batched_tokens=8, max_num_seqs=4, num_state_slots=4, **settings) as llm:
        assert whole == again == tokens(run(llm, family))


def test_a_prefix_is_served_as_far_as_snapshots_are(family: Family) -> None:
    stem, ends = family.prompts[1][:32], [[end] * 20 for end in (5, 6, 7)]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with open_llm(family, enable_prefix_caching=False) as llm:
        expected = tokens(llm.generate([stem + end for end in ends], params, use_tqdm=False))
    with open_llm(family) as llm:
        outputs = [llm.generate([stem + end], params, use_tqdm=False)[0] for end in (*ends, ends[1])]
        assert llm.status().cached_states == 4
    assert [output.outputs[0].token_ids for output in outputs] == [*expected, expected[1]]
    # Each keeps its state after 48 of its 52 tokens; the second also where it parted from the first.
    assert [output.num_cached_tokens for output in outputs] == [0, 0, 32, 48]


def test_beams_are_those_of_transformers(family: Family) -> None:
    model, prompt = AutoModelForCausalLM.from_pretrained(family.base, dtype=torch.float32), family.prompts[1]
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([prompt]), num_beams=3, num_return_sequences=3, max_new_tokens=9, do_sample=False,
            early_stopping=False, length_penalty=0.0, eos_token_id=None, use_cache=False,
        )  # fmt: skip
    with open_llm(family, max_num_batched_tokens=16, max_num_seqs=4) as llm:
        params = BeamSearchParams(beam_width=3, max_tokens=9, ignore_eos=True, length_penalty=0.0)
        [found] = llm.beam_search([{"prompt_token_ids": prompt}], params)
    assert [it.tokens for it in found.sequences] == expected.tolist()


def test_the_folder_of_the_whole_model_serves_its_text_part(tmp_path: Path) -> None:
    """With vision and more predicted tokens beside, and an adapter trained on the whole model."""
    from peft import LoraConfig, get_peft_model

    base, prompt = make_whole(tmp_path / "base"), list(range(5, 40))
    whole = Qwen3_5ForConditionalGeneration.from_pretrained(base, dtype=torch.float32).eval()
    targets = r".*language_model.*(in_proj_qkv|in_proj_a|out_proj|q_proj|down_proj)"
    adapted = get_peft_model(whole, LoraConfig(r=6, target_modules=targets, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.4 / parameter.shape[1] ** 0.5)
    adapted.save_pretrained(tmp_path / "adapter")
    _name_modules(tmp_path / "adapter")
    checkpoint = Checkpoint(base, ModelConfig.from_folder(base).spec)
    assert set(checkpoint.left_out) == {"the vision encoder", "the layers that predict several tokens at once"}
    assert checkpoint.left_out_words.startswith("; without the ")
    with LLM(base, {"one": tmp_path / "adapter"}, max_model_len=80, num_kv_blocks=64, num_threads=1) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
        outputs = llm.generate([prompt, prompt], params, adapter=["one", None], use_tqdm=False)
    with adapted.disable_adapter():
        plain = _greedy(adapted, prompt)
    assert tokens(outputs) == [_greedy(adapted, prompt), plain]
    assert plain != tokens(outputs)[0]


def make_whole(folder: Path) -> Path:
    """A folder of the whole model, with vision and more predicted tokens."""
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64}
    vision |= {"patch_size": 4, "num_position_embeddings": 16}
    config = Qwen3_5Config(text_config=WHOLE_VECTORS, vision_config=vision)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole = Qwen3_5ForConditionalGeneration(config)
        spread(whole)
    whole.save_pretrained(folder)
    _add_mtp(folder)
    return make_tokenizer(folder)


@torch.inference_mode()
def _greedy(model: Any, prompt: list[int]) -> list[int]:
    ids = list(prompt)
    for _ in range(NEW_TOKENS):
        ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def _add_mtp(base: Path) -> None:
    """As the hub's checkpoints have it; transformers leaves it out."""
    tensors = load_file(base / "model.safetensors")
    tensors["mtp.layers.0.mlp.down_proj.weight"] = torch.zeros(4, 4)
    save_file(tensors, base / "model.safetensors", {"format": "pt"})


def _name_modules(adapter: Path) -> None:
    """A list in the place of the pattern, as uploads must have."""
    file = adapter / "adapter_config.json"
    config = json.loads(file.read_text())
    config["target_modules"] = ["in_proj_qkv", "in_proj_a", "out_proj", "q_proj", "down_proj"]
    file.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["linear_attention", "mamba"]}, "layer_types has mamba, which is not supported"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types has no full_attention"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads 3 is not a multiple of linear_num_key_heads 2"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: silu"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim as a positive integer"),
    ],
)
def test_what_is_not_served_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    raw = {"architectures": ["Qwen3_5ForCausalLM"], **WHOLE_VECTORS}
    with pytest.raises(ValueError, match=words):
        parse_config(raw | changes, {})
