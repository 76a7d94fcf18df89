"""`loraplex quantize` on mixtures of experts: written with a tensor for each expert, read by others, and served."""

import json
import re
from pathlib import Path
from shutil import copytree
from typing import Any, Final

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file, save_file
from transformers import Glm4MoeConfig, MixtralConfig, PretrainedConfig, Qwen2MoeConfig, Qwen3MoeConfig

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.description.feed_forward import ExpertsSpec, FeedForwardSpec
from loraplex.engine.model.folder import FOLDED_SCALES
from loraplex.engine.model.layer_inputs import inputs_of
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.quantize.float_layers import stored_layer
from loraplex.engine.quantize.layer import quantize_layer, round_layer
from loraplex.engine.quantize.options import QuantizeOptions
from loraplex.engine.quantize.plain.forward import LayerForward, LayerTensors, layer_forward
from loraplex.engine.quantize.report import QuantizationReport
from loraplex.engine.quantize.run import quantize_checkpoint
from loraplex.engine.quantize.statistics import LayerStatistics
from loraplex.engine.startup.quantize_at_start import awq_checkpoint
from loraplex.engine.startup.weights_cache import WeightsCache
from loraplex.quant.weights.recipe import choose_recipe
from loraplex.web.cli.tools.quantize import _print
from tests.checkpoints import reference_model
from tests.engine.model.families.expert_adapters import make_expert_adapter
from tests.engine.model.families.parity import make_base
from tests.engine.model.families.tiny import SIZES, TINY

from .test_families import SCHEMES, assert_served, by_transformers, served

LONGER: Final[dict[str, Any]] = SIZES | {"max_position_embeddings": 256}
MIXTURES: Final[dict[str, PretrainedConfig]] = {
    "qwen3": Qwen3MoeConfig(
        **LONGER, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True
    ),
    "qwen2": Qwen2MoeConfig(
        **LONGER,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=96,
    ),
    "mixtral": MixtralConfig(**LONGER, num_local_experts=4, num_experts_per_tok=2),
}
ROUTERS: Final = {
    "qwen3": ["mlp.gate"],
    "qwen2": ["mlp.gate", "mlp.shared_expert_gate"],
    "mixtral": ["block_sparse_moe.gate"],
}
EXPERT: Final = {
    "qwen3": "model.layers.1.mlp.experts.5.down_proj",
    "qwen2": "model.layers.1.mlp.experts.5.down_proj",
    "mixtral": "model.layers.1.block_sparse_moe.experts.3.w2",
}
FILE: Final = "model.safetensors"
IDLE: Final = 3


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_base(tmp_path_factory.mktemp(name), config) for name, config in MIXTURES.items()}


def quantize(base: Path, output: Path, scheme: str) -> QuantizationReport:
    return quantize_checkpoint(base, output, QuantizeOptions(calibration_tokens=1536, **SCHEMES[scheme]))


def floats_of(folder: Path, target: Path) -> Path:
    """A checkpoint of floats, what compressed-tensors makes of each linear. transformers stacks them as it reads."""
    said = json.loads((folder / "config.json").read_text())
    scheme = QuantizationConfig.model_validate(said.pop("quantization_config")).config_groups["group_0"]
    stored, floats = load_file(folder / FILE), {}
    for name, tensor in stored.items():
        module, _, kind = name.rpartition(".")
        if kind == "weight_packed":
            own = {other.rpartition(".")[2]: it for other, it in stored.items() if other.rpartition(".")[0] == module}
            floats[f"{module}.weight"] = PackedQuantizationCompressor.decompress(own, scheme)["weight"].float()
        elif kind == "weight" and f"{module}.weight_scale" in stored:
            floats[name] = tensor.float() * stored[f"{module}.weight_scale"].float()
        elif kind not in ("weight_scale", "weight_zero_point", "weight_shape"):
            floats[name] = tensor
    copytree(folder, target)
    (target / FOLDED_SCALES).unlink(missing_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in floats.items()}, target / FILE, {"format": "pt"})
    kept = {name: value for name, value in said.items() if not name.startswith("loraplex")}
    (target / "config.json").write_text(json.dumps(kept))
    return target


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", MIXTURES)
def test_others_read_what_is_served(tmp_path: Path, bases: dict[str, Path], family: str, scheme: str) -> None:
    """Experts by the names of the model's own files, and routers as they were."""
    report = quantize(bases[family], tmp_path / "out", scheme)
    model = reference_model(floats_of(tmp_path / "out", tmp_path / "floats"))
    assert_served(served(tmp_path / "out"), by_transformers(model))
    before, after = load_file(bases[family] / FILE), load_file(tmp_path / "out" / FILE)
    stored = "weight" if scheme == "fp8" else "weight_packed"
    assert f"{EXPERT[family]}.{stored}" in after and f"{EXPERT[family]}.weight_scale" in after
    ignored = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["ignore"]
    for router in ROUTERS[family]:
        assert rf"re:.*\.{re.escape(router)}$" in ignored
        assert torch.equal(*(tensors[f"model.layers.1.{router}.weight"] for tensors in (before, after)))
    assert report.unseen == []
    assert report.perplexity_after < 1.15 * report.perplexity_before
    assert report.bytes_after < (0.5 if scheme in ("awq", "gptq") else 0.6) * report.bytes_before


@pytest.mark.parametrize("family", ["qwen3", "mixtral"])
def test_each_expert_errs_less_on_other_tokens_than_rounded_to_nearest(bases: dict[str, Path], family: str) -> None:
    config = ModelConfig.from_folder(bases[family])
    forward, inputs = layer_forward(config.spec.layers[1], 128), inputs_of(config.spec, 1)
    tensors = stored_layer(config.spec, Checkpoint(bases[family], config.spec), 1)
    torch.manual_seed(0)
    sizes = torch.rand(config.hidden_size) * 2 + 0.2
    calibration, others = (LayerStatistics(forward, tensors, 1024, with_hessian=False) for _ in range(2))
    for statistics in (calibration, others):
        forward.apply(tensors, torch.randn(8, 128, config.hidden_size) * sizes, statistics.add)
    recipe = choose_recipe("awq", torch.float32, group_size=16)
    stored = {name: tensor.dtype for name, tensor in tensors.items()}
    awq, nearest = (
        quantize_layer(tensors, stored, calibration, recipe, inputs),
        round_layer(tensors, stored, recipe, inputs),
    )
    mixture, ratios = forward.spec.feed_forward, []
    assert isinstance(mixture, ExpertsSpec)
    for expert in mixture.experts():
        x = others[expert.inputs[0].path].rows
        right = expert_output(forward, tensors, expert, x)
        searched, rounded = (
            float((expert_output(forward, one.tensors(), expert, x) - right).norm()) for one in (awq, nearest)
        )
        ratios.append(searched / rounded)
    assert max(ratios) < 1.03 and sum(ratios) / len(ratios) < 0.97, ratios


def expert_output(
    forward: LayerForward, tensors: LayerTensors, expert: FeedForwardSpec, x: torch.Tensor
) -> torch.Tensor:
    return forward.inner(tensors, expert, x[None])[0] @ tensors[f"{expert.output.path}.weight"].T


def test_adapters_on_experts_answer_on_a_folded_base_as_they_were_trained(
    tmp_path: Path, bases: dict[str, Path]
) -> None:
    out = tmp_path / "out"
    quantize(bases["qwen3"], out, "awq")
    scales = load_file(out / FOLDED_SCALES)
    own = {name: it for name, it in scales.items() if ".experts." in name}
    assert len(own) == 2 * 6 and max(float(it.max() / it.min()) for it in own.values()) > 1.2
    floats = floats_of(out, tmp_path / "floats")
    unfold(floats, scales)
    for name, settings in {"lora": {"rank": 5}, "dora": {"rank": 4, "use_dora": True}}.items():
        adapter = make_expert_adapter(tmp_path / name, bases["qwen3"], others=("q_proj", "o_proj"), **settings)
        found, expected = served(out, adapter), served(floats, adapter)
        assert_served(found, expected)
        assert not torch.allclose(found, served(out), atol=0.02)


def unfold(folder: Path, scales: dict[str, torch.Tensor]) -> None:
    """In the coordinates of the unquantized model."""
    tensors, spec = load_file(folder / FILE), ModelConfig.from_folder(folder).spec
    for layer in range(len(spec.layers)):
        for at in inputs_of(spec, layer):
            if at.maker is None:
                continue
            prefix, found = f"model.layers.{layer}.", scales.pop(f"layers.{layer}.{at.place}")
            for linear in at.linears:
                tensors[f"{prefix}{linear.path}.weight"] /= found
            weight, outputs = tensors[f"{prefix}{at.maker.path}.weight"], at.made_by(found)
            weight *= outputs if weight.dim() == 1 else outputs[:, None]
    assert not scales
    save_file(tensors, folder / FILE, {"format": "pt"})


@pytest.mark.parametrize("scheme", ["awq", "gptq"])
def test_an_expert_without_tokens_is_rounded_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    base = make_base(
        tmp_path / "base",
        Glm4MoeConfig(
            **LONGER, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=64, n_group=1, topk_group=1
        ),
    )
    tensors = load_file(base / FILE)
    [name] = [name for name in tensors if name.endswith("e_score_correction_bias")]
    tensors[name] = torch.where(torch.arange(6) == IDLE, -100.0, 0.0)
    save_file(tensors, base / FILE, {"format": "pt"})
    report = quantize(base, tmp_path / "out", scheme)
    expert = f"{name.removesuffix('.gate.e_score_correction_bias')}.experts.{IDLE}"
    parts = ("gate_proj", "up_proj", "down_proj")
    assert sorted(report.unseen) == sorted(f"{expert}.{part}" for part in parts)
    floats = load_file(floats_of(tmp_path / "out", tmp_path / "floats") / FILE)
    recipe = choose_recipe(**SCHEMES[scheme], scale_dtype=torch.float32)
    for part in parts:
        nearest = recipe.nearest(tensors[f"{expert}.{part}.weight"]).dequantized()
        torch.testing.assert_close(floats[f"{expert}.{part}.weight"], nearest, rtol=1e-5, atol=1e-6)
    _print(report)
    assert (
        f"3 linears of experts are rounded to nearest, as too few tokens of the text were routed to them ({expert}"
        in (capsys.readouterr().out.replace("\n", " "))
    )
    if scheme == "awq":
        said: list[str] = []
        config, cache = ModelConfig.from_folder(base), WeightsCache(tmp_path / "kept", 1 << 30)
        awq_checkpoint(base, config, cache, lambda words, seconds: said.append(words))
        assert said[-1].endswith("; 3 linears of experts that too few tokens came to are rounded to nearest")


@pytest.mark.parametrize("family", MIXTURES)
def test_each_expert_sees_its_own_tokens(bases: dict[str, Path], family: str) -> None:
    config = ModelConfig.from_folder(bases[family])
    forward = layer_forward(config.spec.layers[1], 20)
    tensors = {n: it.float() for n, it in stored_layer(config.spec, Checkpoint(bases[family], config.spec), 1).items()}
    statistics, seen = LayerStatistics(forward, tensors, 60, with_hessian=True), dict[str, list[torch.Tensor]]()

    def observe(place: str, x: torch.Tensor) -> None:
        statistics.add(place, x)
        seen.setdefault(place, []).append(x)

    torch.manual_seed(0)
    for _ in range(2):
        forward.apply(tensors, torch.randn(2, 15, config.hidden_size), observe)
    mixture = forward.spec.feed_forward
    assert isinstance(mixture, ExpertsSpec)
    x, router = torch.cat(seen[mixture.path]), tensors[f"{mixture.routing.router.path}.weight"]
    chosen = (x @ router.T).topk(mixture.routing.experts_per_token, dim=-1).indices
    for number, expert in enumerate(mixture.experts()):
        own = x[(chosen == number).any(-1)]
        gate, up = (own @ tensors[f"{linear.path}.weight"].T for linear in expert.inputs)
        inner = torch.nn.functional.silu(gate) * up
        for linear, rows in ((expert.inputs[0], own), (expert.output, inner)):
            found = statistics[linear.path]
            torch.testing.assert_close(found.rows, rows, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found.magnitudes, rows.abs().mean(0), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found.hessian, 2 / len(rows) * rows.T @ rows, rtol=1e-3, atol=1e-5)
    places = {at.place for at in inputs_of(config.spec, 1)}
    assert set(statistics) == places and len(statistics) == len(places)


def test_awq_at_the_start(tmp_path: Path, bases: dict[str, Path]) -> None:
    base = bases["qwen3"]
    quantize_checkpoint(base, tmp_path / "out", QuantizeOptions(scheme="awq", group_size=64))
    at_start = served(base, quantization="awq", weights_cache=str(tmp_path / "kept"))
    assert torch.equal(at_start, served(tmp_path / "out"))
    assert not torch.equal(at_start, served(base))


def test_tensors_of_all_experts_are_refused_by_name(tmp_path: Path) -> None:
    """By the command and at the start alike, and nothing is kept."""
    base, kept = make_base(tmp_path / "base", TINY["gemma4-experts"]), tmp_path / "kept"
    words = "Gemma4ForCausalLM in .* stores all experts of a layer in one tensor.*--quantization int8, fp8 or int4"
    with pytest.raises(ValueError, match=words):
        quantize(base, tmp_path / "out", "awq")
    with pytest.raises(ValueError, match=words):
        served(base, quantization="awq", weights_cache=str(kept))
    assert not (tmp_path / "out").exists() and not list(kept.glob("awq-*"))
