"""What `loraplex quantize` writes, served: the log-probabilities of transformers with compressed-tensors."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import CompressedTensorsConfig, PreTrainedModel
from transformers.models.auto import AutoModelForCausalLM

from loraplex import LLM, SamplingParams
from loraplex.engine.model.folder import FOLDED_DIGEST, FOLDED_SCALES
from loraplex.engine.quantize.options import QuantizeOptions
from loraplex.engine.quantize.run import quantize_checkpoint
from tests.checkpoints import make_adapter, make_checkpoint

CASES: dict[str, dict[str, Any]] = {
    "awq": {"scheme": "awq", "group_size": 32, "fold": False},
    "awq-folded": {"scheme": "awq", "group_size": 32},
    "gptq": {"scheme": "gptq", "group_size": 32},
    "int8": {"scheme": "int8"},
    "fp8": {"scheme": "fp8"},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), "qwen2")


@pytest.mark.parametrize("case", CASES)
def test_the_engine_answers_as_another_reader_does(tmp_path: Path, base: Path, case: str) -> None:
    quantize_checkpoint(base, tmp_path / "out", QuantizeOptions(calibration_tokens=1536, **CASES[case]))
    settings = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if "awq" in case else {}
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32, **settings).eval()
    prompt = list(range(5, 25))
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    with LLM(tmp_path / "out") as llm:
        [answer] = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=1, logprobs=5))
        found = answer.outputs[0].logprobs[0]
        assert set(found) >= set(expected.topk(3).indices.tolist())
        for token, logprob in found.items():
            assert logprob.logprob == pytest.approx(expected[token].item(), rel=1e-3), token


NORMS = {"self_attn.qkv": "input_layernorm", "mlp.gate_up": "post_attention_layernorm"}
READERS = {"self_attn.qkv": ("q_proj", "k_proj", "v_proj"), "mlp.gate_up": ("gate_proj", "up_proj")}
MAKERS = {"self_attn.o_proj": "self_attn.v_proj", "mlp.down_proj": "mlp.up_proj"}


def unfolded(folder: Path) -> PreTrainedModel:
    """The folded checkpoint as another reader opens it, in the coordinates of the unquantized model."""
    settings = CompressedTensorsConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=settings)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, scales in load_file(folder / FOLDED_SCALES).items():
            _, layer, place = name.split(".", 2)
            prefix = f"model.layers.{layer}."
            for kind in READERS.get(place, (place.rpartition(".")[2],)):
                weights[f"{prefix}{place.split('.')[0]}.{kind}.weight"].div_(scales)
            if place in NORMS:
                weights[f"{prefix}{NORMS[place]}.weight"].mul_(scales)
                continue
            heads = scales.view(
                model.config.num_key_value_heads, -1, scales.numel() // model.config.num_attention_heads
            )
            outputs = heads[:, 0].flatten() if place == "self_attn.o_proj" else scales
            weights[f"{prefix}{MAKERS[place]}.weight"].mul_(outputs[:, None])
            if f"{prefix}{MAKERS[place]}.bias" in weights:
                weights[f"{prefix}{MAKERS[place]}.bias"].mul_(outputs)
    return cast(PreTrainedModel, model.eval())


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_answer_on_a_folded_base_as_they_were_trained(tmp_path: Path, base: Path, dora: bool) -> None:
    quantize_checkpoint(base, tmp_path / "out", QuantizeOptions(calibration_tokens=1536, **CASES["awq-folded"]))
    adapter = make_adapter(tmp_path / "adapter", base, use_dora=dora)
    scales = load_file(tmp_path / "out" / FOLDED_SCALES)
    assert any(scale.max() > 1.2 * scale.min() for scale in scales.values()), "nothing was folded"
    prompt = list(range(5, 25))
    reference = PeftModel.from_pretrained(unfolded(tmp_path / "out"), adapter).eval()
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    with LLM(tmp_path / "out", adapters={"some": adapter}) as llm:
        [answer] = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=1, logprobs=5), adapter="some")
    for token, logprob in answer.outputs[0].logprobs[0].items():
        assert logprob.logprob == pytest.approx(expected[token].item(), rel=1e-3), token


def test_scales_of_another_model_are_refused(tmp_path: Path, base: Path) -> None:
    quantize_checkpoint(base, tmp_path / "out", QuantizeOptions(calibration_tokens=1536, **CASES["awq-folded"]))
    path = tmp_path / "out" / FOLDED_SCALES
    scales = load_file(path)
    without_digest(tmp_path / "out" / "config.json")
    for change, words in (
        ({"layers.1.mlp.down_proj": None}, r"layers.1.mlp.down_proj is missing, expected \[96\]"),
        ({"layers.0.self_attn.qkv": torch.ones(3)}, r"layers.0.self_attn.qkv is \[3\], expected \[64\]"),
        ({"layers.0.self_attn.qkv": torch.zeros(64)}, "not above zero"),
    ):
        save_file({name: tensor for name, tensor in (scales | change).items() if tensor is not None}, path)
        with pytest.raises(ValueError, match=words), LLM(tmp_path / "out"):
            raise AssertionError("it was served")


def test_without_its_scales_a_folded_checkpoint_is_not_served(tmp_path: Path, base: Path) -> None:
    """It would answer, and its adapters would answer wrongly."""
    quantize_checkpoint(base, tmp_path / "out", QuantizeOptions(calibration_tokens=1536, **CASES["awq-folded"]))
    path = tmp_path / "out" / FOLDED_SCALES
    scales = load_file(path)
    save_file(scales | {"layers.0.self_attn.qkv": 2 * scales["layers.0.self_attn.qkv"]}, path)
    with (
        pytest.raises(ValueError, match="not the file that was written with"),
        LLM(tmp_path / "out"),
    ):
        raise AssertionError("it was served")
    path.unlink()
    with pytest.raises(ValueError, match="is missing: with it"), LLM(tmp_path / "out"):
        raise AssertionError("it was served")


def without_digest(path: Path) -> None:
    """As checkpoints were written before the file was announced."""
    config = json.loads(path.read_text())
    del config[FOLDED_DIGEST]
    path.write_text(json.dumps(config))
