"""Quantized folders of larger models of which the text is served, against transformers on the floats of their weights.
tests/engine/model/families/test_few_bits.py has the formats of each family."""

from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import Qwen3_5ForConditionalGeneration

from loraplex import LLM, SamplingParams
from tests.engine.model.families.test_qwen3_5 import make_whole
from tests.quant.made_checkpoints import groups, quantize_folder, scheme
from tests.quant.made_formats import compressed, gptq

IDS: Final = list(range(3, 43))
TOLERANCE: Final = 2e-3
"""Of a log-probability: kernels of integers keep 16 bits of each activation."""


def served(folder: Path) -> torch.Tensor:
    with LLM(folder, num_kv_blocks=32, num_threads=1) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=20)
        [answer] = llm.generate([IDS], params, use_tqdm=False)
    found = torch.full((320,), -torch.inf)
    for token, one in answer.outputs[0].logprobs[0].items():
        found[token] = one.logprob
    return found


@torch.inference_mode()
def assert_served(folder: Path, model: Any) -> None:
    expected = model(torch.tensor([IDS])).logits[0, -1].log_softmax(-1)
    found, likeliest = served(folder), expected.topk(15).indices
    assert (found[likeliest] - expected[likeliest]).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    "ignored",
    [
        ("re:.*linear_attn.*",),
        (r"re:model\.language_model\.layers\.\d\.linear_attn.*",),
        (r"re:model\.layers\.\d\.linear_attn.*",),
        tuple(
            f"model.language_model.layers.{layer}.linear_attn.{part}"
            for layer in range(3)
            for part in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")
        ),
    ],
    ids=["anywhere", "in-the-whole", "in-the-text", "by-name"],
)
def test_names_of_the_whole_model_and_of_its_text_are_understood(tmp_path: Path, ignored: tuple[str, ...]) -> None:
    folder = make_whole(tmp_path / "base")
    model = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    said = groups(
        "pack-quantized",
        scheme("int", 4, "group", group_size=16),
        ignore=("lm_head", "re:.*visual.*", "re:.*mtp.*", *ignored),
    )
    floats = quantize_folder(folder, said, lambda module: None if "linear_attn" in module else compressed(4, 16))
    unexpected = model.load_state_dict(floats, strict=False).unexpected_keys
    assert all(name.startswith("mtp.") for name in unexpected)
    assert_served(folder, model)


def test_a_rule_of_gptq_by_the_name_in_the_whole_model_counts(tmp_path: Path) -> None:
    folder = make_whole(tmp_path / "base")
    model = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    rules = {r"model\.language_model\.layers\.\d\.mlp": {"bits": 8, "group_size": -1}, "-:.*linear_attn": {}}
    said = {"quant_method": "gptq", "bits": 4, "group_size": 16, "dynamic": rules}
    eight, four = gptq(8, -1), gptq(4, 16)
    floats = quantize_folder(
        folder, said, lambda module: None if "linear_attn" in module else eight if ".mlp." in module else four
    )
    model.load_state_dict(floats, strict=False)
    assert_served(folder, model)
