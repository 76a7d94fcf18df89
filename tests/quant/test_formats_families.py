"""Quantized checkpoints of other families than Llama's, against transformers on the floats of their weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, OPTConfig, PretrainedConfig, Qwen3_5ForConditionalGeneration, Qwen3_5TextConfig

from loraplex import LLM, SamplingParams
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.expected import layer_path
from loraplex.engine.model.loader import Checkpoint
from tests.checkpoints import reference_model
from tests.engine.certify.test_reference_families import GPT2, OPT
from tests.engine.model.families.parity import make_base
from tests.engine.model.families.test_qwen3_5 import WHOLE_VECTORS, make_whole
from tests.quant.made_checkpoints import FILE, groups, scheme, write_config
from tests.quant.made_formats import Make, awq, compressed, float8, gptq

FAMILIES: Final[dict[str, PretrainedConfig]] = {
    "opt": OPTConfig(**OPT),
    "opt-projected": OPTConfig(**OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "gpt2": GPT2Config(**GPT2),
    "qwen3_5": Qwen3_5TextConfig(**WHOLE_VECTORS),
}
STATES: Final = ("in_proj_a", "in_proj_b")
"""Of too few outputs to be packed."""
FORMATS: Final[dict[str, tuple[dict[str, Any], Make]]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}, awq(16)),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True}, gptq(4, 16, ordered=True)),
    "packed4": (
        groups(
            "pack-quantized",
            scheme("int", 4, "group", group_size=16),
            ignore=("lm_head", "re:.*project_(in|out)", "re:.*in_proj_[ab]$"),
        ),
        compressed(4, 16),
    ),
    "fp8": ({"quant_method": "fp8"}, float8((None, None), "weight_scale", ())),
}
IDS: Final = list(range(3, 43))
TOLERANCE: Final = 2e-3
"""Of a log-probability: kernels of integers keep 16 bits of each activation."""


def quantize(folder: Path, said: dict[str, Any], make: Callable[[str], Make | None]) -> dict[str, torch.Tensor]:
    """The checkpoint in `folder` quantized in place; the floats that it stands for, by their names there. `make` is
    asked with those too."""
    config, random = ModelConfig.from_folder(folder), np.random.default_rng(0)
    checkpoint, tensors = Checkpoint(folder, config.spec), load_file(folder / FILE)
    floats = dict(tensors)
    for number, layer in enumerate(config.spec.layers):
        for linear in layer.linears():
            name = checkpoint.stored_name(f"{layer_path(config.spec, number)}{linear.path}.weight")
            module = name.removesuffix(".weight")
            make_it = make(module)
            if make_it is None:
                continue
            made = make_it(random, linear.outputs, linear.inputs)
            floats[name] = (made.weight.T if linear.is_transposed else made.weight).contiguous()
            del tensors[name]
            tensors |= {f"{module}.{suffix}": packed.contiguous() for suffix, packed in made.tensors.items()}
    save_file(tensors, folder / FILE, {"format": "pt"})
    write_config(folder, quantization_config=said)
    return floats


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


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_the_floats_that_the_weights_stand_for(tmp_path: Path, family: str, name: str) -> None:
    folder, (said, make) = make_base(tmp_path / "base", FAMILIES[family]), FORMATS[name]
    model = reference_model(folder)
    floats = quantize(folder, said, lambda module: None if module.endswith(STATES) else make)
    assert not model.load_state_dict(floats, strict=False).unexpected_keys
    assert_served(folder, model)


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
    floats = quantize(folder, said, lambda module: None if "linear_attn" in module else compressed(4, 16))
    unexpected = model.load_state_dict(floats, strict=False).unexpected_keys
    assert all(name.startswith("mtp.") for name in unexpected)
    assert_served(folder, model)


def test_a_rule_of_gptq_by_the_name_in_the_whole_model_counts(tmp_path: Path) -> None:
    folder = make_whole(tmp_path / "base")
    model = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    rules = {r"model\.language_model\.layers\.\d\.mlp": {"bits": 8, "group_size": -1}, "-:.*linear_attn": {}}
    said = {"quant_method": "gptq", "bits": 4, "group_size": 16, "dynamic": rules}
    eight, four = gptq(8, -1), gptq(4, 16)
    floats = quantize(
        folder, said, lambda module: None if "linear_attn" in module else eight if ".mlp." in module else four
    )
    model.load_state_dict(floats, strict=False)
    assert_served(folder, model)
