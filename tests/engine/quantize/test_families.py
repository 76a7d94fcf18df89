"""`loraplex quantize` on families with other layers than Llama's: written, read by transformers, and served."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import (
    CompressedTensorsConfig,
    Gemma4TextConfig,
    GPT2Config,
    OPTConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3_5TextConfig,
)
from transformers.models.auto import AutoModelForCausalLM

from loraplex import LLM, SamplingParams
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.description.spec import ModelSpec, NormSpec
from loraplex.engine.model.folder import FOLDED_SCALES
from loraplex.engine.model.layer_inputs import inputs_of
from loraplex.engine.quantize import run as run_module
from loraplex.engine.quantize.options import QuantizeOptions
from loraplex.engine.quantize.run import quantize_checkpoint
from loraplex.quant.weights.recipe import Recipe
from loraplex.quant.weights.weights import Float8Weight, IntegerWeight
from tests.checkpoints import make_adapter, reference_model
from tests.engine.certify.test_reference_families import GPT2, OPT
from tests.engine.model.families.parity import make_base
from tests.engine.model.families.test_gemma import CONFIGS
from tests.engine.model.families.test_qwen3_5 import WHOLE_VECTORS, make_whole
from tests.engine.model.families.tiny import TINY
from tests.engine.pooling.encoders import make_encoder

FAMILIES: Final[dict[str, PretrainedConfig]] = {
    "opt": OPTConfig(**OPT | {"max_position_embeddings": 256}),
    "opt-projected": OPTConfig(
        **OPT | {"max_position_embeddings": 256, "do_layer_norm_before": False, "word_embed_proj_dim": 32}
    ),
    "gpt2": GPT2Config(**GPT2 | {"n_positions": 256}),
    "gemma3": CONFIGS["gemma3-linear-rope"],
    "gemma4-values-are-keys": Gemma4TextConfig(
        **TINY["gemma4-values-are-keys"].to_dict() | {"max_position_embeddings": 256}
    ),
    "qwen3_5": Qwen3_5TextConfig(
        **WHOLE_VECTORS | {"max_position_embeddings": 256, "linear_num_value_heads": 16, "linear_value_head_dim": 16}
    ),
}
"""compressed-tensors 0.20 does not read packed zero points of 8 outputs or fewer."""
KINDS: Final = {
    "opt": ("q_proj", "out_proj", "fc1", "fc2"),
    "gpt2": ("c_attn", "c_proj"),
    "gemma3": "all-linear",
    "gemma4-values-are-keys": "all-linear",
    "qwen3_5": "all-linear",
}
SCHEMES: Final[dict[str, dict[str, Any]]] = {
    "awq": {"scheme": "awq", "group_size": 16},
    "gptq": {"scheme": "gptq", "group_size": 16},
    "int8": {"scheme": "int8"},
    "fp8": {"scheme": "fp8"},
}
PROMPT: Final = list(range(5, 45))
Weight = IntegerWeight | Float8Weight


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_base(tmp_path_factory.mktemp(name), config) for name, config in FAMILIES.items()}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """What we say that the written weights are: name -> float32."""
    said: dict[str, torch.Tensor] = {}
    export = run_module.exported_tensors

    def note(linear: str, weight: Weight, recipe: Recipe) -> dict[str, torch.Tensor]:
        said[f"{linear}.weight"] = weight.dequantized()
        return export(linear, weight, recipe)

    monkeypatch.setattr(run_module, "exported_tensors", note)
    return said


def quantize(base: Path, output: Path, scheme: str) -> None:
    quantize_checkpoint(base, output, QuantizeOptions(calibration_tokens=1536, **SCHEMES[scheme]))


def served(folder: Path, adapter: Path | None = None, **settings: Any) -> torch.Tensor:
    """Log-probabilities of the prompt's next token, of the likeliest ones; minus infinity of the others."""
    adapters = {} if adapter is None else {"some": adapter}
    with LLM(folder, adapters, num_kv_blocks=32, num_threads=1, **settings) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=20)
        [answer] = llm.generate([PROMPT], params, adapter="some" if adapter else None, use_tqdm=False)
    found = torch.full((320,), -torch.inf)
    for token, one in answer.outputs[0].logprobs[0].items():
        found[token] = one.logprob
    return found


@torch.inference_mode()
def by_transformers(model: Any) -> torch.Tensor:
    return model(torch.tensor([PROMPT])).logits[0, -1].float().log_softmax(-1)


def assert_served(found: torch.Tensor, expected: torch.Tensor) -> None:
    likeliest = expected.topk(15).indices
    assert (found[likeliest] - expected[likeliest]).abs().max() < 2e-3


def read_independently(folder: Path) -> PreTrainedModel:
    settings = CompressedTensorsConfig(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=settings).eval()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gpt2"])
def test_transformers_reads_what_is_served(
    tmp_path: Path, bases: dict[str, Path], written: dict[str, torch.Tensor], family: str, scheme: str
) -> None:
    quantize(bases[family], tmp_path / "out", scheme)
    model = read_independently(tmp_path / "out")
    parameters = dict(model.named_parameters())
    assert written
    for name, weight in written.items():
        assert torch.equal(parameters[name], weight), name
    assert_served(served(tmp_path / "out"), by_transformers(model))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gpt2_is_served_as_it_was_written(
    tmp_path: Path, bases: dict[str, Path], written: dict[str, torch.Tensor], scheme: str
) -> None:
    quantize(bases["gpt2"], tmp_path / "out", scheme)
    model = gpt2_as_written(bases["gpt2"], tmp_path / "out", written)
    assert_served(served(tmp_path / "out"), by_transformers(model))


def gpt2_as_written(base: Path, folder: Path, written: dict[str, torch.Tensor]) -> PreTrainedModel:
    """transformers quantizes no Conv1D: its float model gets the weights that we say we wrote."""
    model, stored = reference_model(base), load_file(folder / "model.safetensors")
    packed = {name.removesuffix(".weight") for name in written}
    floats = {
        name: tensor
        for name, tensor in stored.items()
        if name.rpartition(".")[0] not in packed or name.endswith(".bias")
    }
    missing = model.load_state_dict(floats | {name: weight.T for name, weight in written.items()}, strict=False)
    assert not missing.unexpected_keys and missing.missing_keys == ["lm_head.weight"]
    return model


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("family", KINDS)
def test_adapters_answer_on_a_folded_base_as_they_were_trained(
    tmp_path: Path, bases: dict[str, Path], written: dict[str, torch.Tensor], family: str, dora: bool
) -> None:
    base, out = bases[family], tmp_path / "out"
    adapter = make_adapter(tmp_path / "adapter", base, kinds=KINDS[family], rank=4, use_dora=dora)
    quantize(base, out, "awq")
    scales = load_file(out / FOLDED_SCALES)
    assert any(scale.max() > 1.2 * scale.min() for scale in scales.values()), "nothing was folded"
    model = gpt2_as_written(base, out, written) if family == "gpt2" else read_independently(out)
    unfold(model, ModelConfig.from_folder(out).spec, scales)
    assert_served(served(out, adapter), by_transformers(PeftModel.from_pretrained(model, adapter).eval()))


@torch.no_grad()
def unfold(model: PreTrainedModel, spec: ModelSpec, scales: dict[str, torch.Tensor]) -> None:
    """In the coordinates of the unquantized model."""
    weights = dict(model.named_parameters())
    for layer in range(len(spec.layers)):
        for at in inputs_of(spec, layer):
            found, prefix = scales.pop(f"layers.{layer}.{at.place}", None), f"{spec.layers_path}.{layer}."
            assert (found is None) == (at.maker is None), at.place
            if at.maker is None:
                continue
            for linear in at.linears:
                weight = weights[f"{prefix}{linear.path}.weight"]
                (weight.T if linear.is_transposed else weight).div_(found)
            weight, outputs = weights[f"{prefix}{at.maker.path}.weight"], at.made_by(found)
            origin = 1.0 if isinstance(at.maker, NormSpec) and at.maker.adds_one else 0.0
            weight.copy_((weight + origin) * (outputs if weight.dim() == 1 else outputs[:, None]) - origin)
            if f"{prefix}{at.maker.path}.bias" in weights:
                weights[f"{prefix}{at.maker.path}.bias"].mul_(outputs)
    assert not scales


@pytest.mark.parametrize("family", ["gemma3", "gemma4-values-are-keys"])
def test_awq_at_the_start(tmp_path: Path, bases: dict[str, Path], family: str) -> None:
    quantize_checkpoint(
        bases[family], tmp_path / "out", QuantizeOptions(scheme="awq", group_size=32, calibration_tokens=32768)
    )
    at_start = served(bases[family], quantization="awq", weights_cache=str(tmp_path / "kept"))
    assert torch.equal(at_start, served(tmp_path / "out"))
    assert not torch.equal(at_start, served(bases[family]))


@pytest.mark.parametrize(("family", "name"), [("gemma4", "Gemma4"), ("gemma4-unified", "Gemma4Unified")])
def test_layers_that_read_keys_of_others_are_refused_by_name(tmp_path: Path, family: str, name: str) -> None:
    """By the command and at the start alike, and nothing is kept."""
    base, kept = make_base(tmp_path / "base", TINY[family]), tmp_path / "kept"
    words = f"{name}ForCausalLM .* layers that read keys and values of other layers.*--quantization int8, fp8 or int4"
    with pytest.raises(ValueError, match=words):
        quantize(base, tmp_path / "out", "awq")
    with pytest.raises(ValueError, match=words):
        served(base, quantization="awq", weights_cache=str(kept))
    assert not (tmp_path / "out").exists() and not list(kept.glob("awq-*"))


@pytest.mark.parametrize("scheme", ["gptq", "int8"])
def test_a_larger_model_keeps_its_names_and_what_is_not_served(tmp_path: Path, scheme: str) -> None:
    base = make_whole(tmp_path / "base")
    quantize(base, tmp_path / "out", scheme)
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "out"))
    left = [name for name in before if "visual" in name or name.startswith("mtp.")]
    assert len(left) > 3 and all(torch.equal(before[name], after[name]) for name in left)
    modules = {name.rpartition(".")[0] for name in before}
    assert {name.rpartition(".")[0] for name in after} == modules
    ignored = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["ignore"]
    assert ignored == ["lm_head", r"re:(.*\.)?mtp\..*", r"re:(.*\.)?visual\..*"]
    from transformers import Qwen3_5ForConditionalGeneration

    settings = CompressedTensorsConfig(dequantize=True)
    model = Qwen3_5ForConditionalGeneration.from_pretrained(
        tmp_path / "out", dtype=torch.float32, quantization_config=settings
    )
    assert_served(served(tmp_path / "out"), by_transformers(model.eval()))


@pytest.mark.parametrize(("encoder", "task"), [("bert", "embed"), ("modernbert", "classify")])
def test_an_encoder_is_refused_by_name(tmp_path: Path, encoder: str, task: str) -> None:
    base = make_encoder(tmp_path / "base", encoder, task)
    with pytest.raises(ValueError, match=r"^(Bert|ModernBert)Model, an encoder, in .* generates no text"):
        quantize(base, tmp_path / "out", "int8")
    assert not (tmp_path / "out").exists()
