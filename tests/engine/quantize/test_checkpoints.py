"""Whole checkpoints, read by transformers with compressed-tensors and compared to what we say of them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, CompressedTensorsConfig, PreTrainedModel
from transformers.models.auto import AutoModelForCausalLM

from loraplex.engine.model.folder import FOLDED_SCALES
from loraplex.engine.quantize import run as run_module
from loraplex.engine.quantize.options import QuantizeOptions
from loraplex.engine.quantize.report import QuantizationReport
from loraplex.engine.quantize.run import quantize_checkpoint
from loraplex.engine.quantize.text import calibration_sequences
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.quant.weights.recipe import Recipe
from loraplex.quant.weights.weights import Float8Weight, IntegerWeight
from tests.checkpoints import make_checkpoint, reference_model

TOKENS = 1536
CASES: dict[str, dict[str, Any]] = {
    "awq": {"scheme": "awq", "group_size": 32, "fold": False},
    "awq-folded": {"scheme": "awq", "group_size": 16},
    "awq-symmetric": {"scheme": "awq", "group_size": 32, "symmetric": True, "fold": False},
    "gptq": {"scheme": "gptq", "group_size": 32},
    "gptq-in-order": {"scheme": "gptq", "group_size": 32, "activation_order": False, "symmetric": False},
    "int8": {"scheme": "int8"},
    "fp8": {"scheme": "fp8"},
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    return {
        "llama": make_checkpoint(folder / "llama", "llama", tie_word_embeddings=True),
        "qwen2": make_checkpoint(folder / "qwen2", "qwen2"),
        "qwen3": make_checkpoint(folder / "qwen3", "qwen3", dtype=torch.bfloat16),
    }


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """What we say that the written weights are: name -> float32."""
    said: dict[str, torch.Tensor] = {}
    export = run_module.exported_tensors

    def note(linear: str, weight: IntegerWeight | Float8Weight, recipe: Recipe) -> dict[str, torch.Tensor]:
        said[f"{linear}.weight"] = weight.dequantized()
        return export(linear, weight, recipe)

    monkeypatch.setattr(run_module, "exported_tensors", note)
    return said


SCHEMES: tuple[dict[str, Any], ...] = (
    {"scheme": "int8"},
    {"scheme": "awq", "group_size": 16},
    {"scheme": "gptq", "group_size": 16},
)
NOT_FINITE = (
    "model.norm.weight",
    "model.embed_tokens.weight",
    "model.layers.1.input_layernorm.weight",
    "model.layers.1.mlp.down_proj.weight",
)


def quantize(base: Path, output: Path, **options: Any) -> QuantizationReport:
    return quantize_checkpoint(base, output, QuantizeOptions(calibration_tokens=TOKENS, **options))


def read_independently(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """As anyone would, but for zero points: compressed-tensors 0.20 expects another shape of them than it writes."""
    asymmetric = any("weight_zero_point" in name for name in load_file(folder / "model.safetensors"))
    settings = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if asymmetric else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **settings).eval()
    model(torch.tensor([[0]]))  # without settings it is dequantized at first use
    return model


def perplexity(model: PreTrainedModel, token_ids: torch.Tensor) -> float:
    with torch.no_grad():
        logits = model(token_ids).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), token_ids[:, 1:].flatten())
    return loss.exp().item()


@pytest.mark.parametrize("case", CASES)
def test_another_reader_finds_the_same_weights_and_perplexity(
    tmp_path: Path, bases: dict[str, Path], written: dict[str, torch.Tensor], case: str
) -> None:
    base, output = bases["llama" if case in ("int8", "awq-symmetric") else "qwen2"], tmp_path / case
    report = quantize(base, output, **CASES[case])
    model = read_independently(output, torch.float32)
    found = dict(model.named_parameters())
    assert len(written) == 14
    for name, weight in written.items():
        assert torch.equal(found[name], weight), name
    held_out = calibration_sequences(Tokenizer(base), None, TOKENS, 256).held_out
    assert report.perplexity_before == pytest.approx(perplexity(reference_model(base), held_out), rel=1e-4)
    assert report.perplexity_after == pytest.approx(perplexity(model, held_out), rel=1e-4)
    assert report.held_out_tokens == held_out[:, 1:].numel()
    stored = load_file(output / "model.safetensors")
    assert report.bytes_after == sum(tensor.nbytes for tensor in stored.values()) < report.bytes_before
    assert AutoTokenizer.from_pretrained(output).encode("fox") == AutoTokenizer.from_pretrained(base).encode("fox")


@pytest.mark.parametrize("case", ["awq-folded", "fp8"])
def test_a_bfloat16_checkpoint_stays_one(
    tmp_path: Path, bases: dict[str, Path], written: dict[str, torch.Tensor], case: str
) -> None:
    quantize(bases["qwen3"], tmp_path / "out", **CASES[case])
    found = dict(read_independently(tmp_path / "out", torch.bfloat16).named_parameters())
    for name, weight in written.items():
        assert torch.equal(found[name], weight.bfloat16()), name
    original = load_file(bases["qwen3"] / "model.safetensors")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    floats = {name for name in stored if stored[name].is_floating_point() and "float8" not in str(stored[name].dtype)}
    assert {stored[name].dtype for name in floats} == {torch.bfloat16}
    if case == "fp8":
        assert all(torch.equal(stored[name], original[name]) for name in floats if name in original)
        return
    for name, scales in load_file(tmp_path / "out" / FOLDED_SCALES).items():
        norms = {"self_attn.qkv": "input_layernorm", "mlp.gate_up": "post_attention_layernorm"}
        _, layer, place = name.split(".", 2)
        if place in norms:
            norm = f"model.layers.{layer}.{norms[place]}.weight"
            assert torch.allclose(stored[norm].float() * scales, original[norm].float(), rtol=1e-6)


def test_searching_beats_rounding_to_nearest(tmp_path: Path, bases: dict[str, Path]) -> None:
    for case in ("awq", "awq-folded", "gptq", "gptq-in-order"):
        for layer in quantize(bases["llama"], tmp_path / case, **CASES[case]).layers:
            assert layer.chosen < layer.nearest, case
    layers = quantize(bases["llama"], tmp_path / "int8", scheme="int8").layers
    assert all(layer.chosen == layer.nearest < 0.05 for layer in layers)


def test_progress_is_told_layer_by_layer(tmp_path: Path, bases: dict[str, Path]) -> None:
    told: list[tuple[int, int]] = []
    options = QuantizeOptions(scheme="fp8", calibration_tokens=TOKENS)
    quantize_checkpoint(bases["llama"], tmp_path / "out", options, lambda done, total: told.append((done, total)))
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_a_stop_on_the_way_leaves_nothing(tmp_path: Path, bases: dict[str, Path]) -> None:
    def stop(done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(
            bases["llama"], tmp_path / "out", QuantizeOptions(scheme="fp8", calibration_tokens=TOKENS), stop
        )
    assert not any(tmp_path.iterdir())


def broken(base: Path, folder: Path, tensor: str, value: float = math.nan) -> Path:
    """A copy whose `tensor` holds a NaN, or is `value` everywhere."""
    folder.mkdir()
    for file in base.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(base / "model.safetensors")
    tensors[tensor].view(-1)[3 if math.isnan(value) else slice(None)] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_what_cannot_be_quantized_is_refused_in_words(tmp_path: Path, bases: dict[str, Path]) -> None:
    quantize(bases["llama"], tmp_path / "done", scheme="int8")
    configs: dict[str, Any] = {
        "other": {"architectures": ["MambaForCausalLM"]},
        "early": {"compression_config": {"config_groups": {}}},
        "word": {"quantization_config": "awq"},
        "list": [],
    }
    for folder, config in configs.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "empty").mkdir()
    spoiled = [(broken(bases["llama"], tmp_path / f"nan-{number}", it), it) for number, it in enumerate(NOT_FINITE)]
    large = broken(bases["llama"], tmp_path / "large", NOT_FINITE[0], 1e38)
    refusals = (
        (tmp_path / "done", {"scheme": "awq"}, r"is quantized already \(compressed-tensors\)"),
        (tmp_path / "early", {"scheme": "awq"}, r"is quantized already \(compressed-tensors\)"),
        (tmp_path / "word", {"scheme": "awq"}, r"is quantized already \(awq\)"),
        (tmp_path / "list", {"scheme": "awq"}, r"config\.json must hold a JSON object"),
        (tmp_path / "other", {"scheme": "awq"}, "MambaForCausalLM is not supported; supported: .*LlamaForCausalLM"),
        (tmp_path / "empty", {"scheme": "awq"}, "has no config.json"),
        (bases["llama"], {"scheme": "awq"}, "128 does not divide the 64 inputs of a linear; choose 16 or 32$"),
        (bases["llama"], {"scheme": "fp8", "group_size": 32}, "--group-size means nothing for the scheme fp8"),
        (bases["llama"], {"scheme": "gptq", "fold": True}, "--fold means nothing for the scheme gptq"),
        (bases["llama"], {"scheme": "awq", "activation_order": True}, "--activation-order means nothing"),
        (bases["llama"], {"scheme": "nf4"}, "'nf4' is not known; known are awq, gptq, int8, fp8"),
        *((folder, options, f"^{tensor} holds NaN .* in 1 of ") for folder, tensor in spoiled for options in SCHEMES),
        (large, {"scheme": "int8"}, "^the checkpoint answers the held-out text with a perplexity of (nan|inf)"),
    )
    before = set(tmp_path.iterdir())
    for base, options, words in refusals:
        with pytest.raises(ValueError, match=words):
            quantize(base, tmp_path / "refused", **options)
    assert set(tmp_path.iterdir()) == before
