"""Checkpoints with experts: a tensor for each expert or one for all, what does not fit, and memory while they load."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MixtralConfig, Qwen3MoeConfig

from loraplex.engine.model.config import ModelConfig, parse_config
from loraplex.engine.model.description.feed_forward import ExpertsSpec, StackedSpec
from loraplex.engine.model.expected import expected_tensors
from loraplex.engine.model.experts.stacked import StoredTensor, split_stacked
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.quantize.run import open_unquantized
from tests.engine.memory_limit import print_alone
from tests.engine.model.families.parity import TOKENS, make_base

SHAPE: Final[dict[str, Any]] = TOKENS | {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16,
    "max_position_embeddings": 128,
}  # fmt: skip
EXPERTS: Final = 6
LAYER: Final = "model.layers.1.mlp.experts"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = Qwen3MoeConfig(**SHAPE, num_experts=EXPERTS, num_experts_per_tok=2, moe_intermediate_size=20)
    return make_base(tmp_path_factory.mktemp("base"), config)


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def changed(base: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A copy of the checkpoint with other tensors."""
    copytree(base, folder)
    tensors = stored(base)
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def stack(tensors: dict[str, torch.Tensor], layer: str = LAYER, experts: int = EXPERTS) -> None:
    """In place: the layer's experts as one tensor of each kind."""
    parts = {
        part: torch.stack([tensors.pop(f"{layer}.{number}.{part}.weight") for number in range(experts)])
        for part in ("gate_proj", "up_proj", "down_proj")
    }
    tensors[f"{layer}.gate_up_proj"] = torch.cat([parts["gate_proj"], parts["up_proj"]], dim=1)
    tensors[f"{layer}.down_proj"] = parts["down_proj"].contiguous()


def opened(folder: Path) -> Checkpoint:
    config = ModelConfig.from_folder(folder)
    checkpoint = Checkpoint(folder, config.spec)
    checkpoint.verify(config)
    return checkpoint


def test_one_tensor_for_all_experts_holds_the_same_weights(base: Path, tmp_path: Path) -> None:
    """Of one layer: the other keeps a tensor for each expert."""
    checkpoint, wanted = opened(changed(base, tmp_path / "stacked", stack)), stored(base)
    assert set(checkpoint) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(checkpoint.tensor(name), tensor), name
        assert checkpoint.shape(name) == tuple(tensor.shape) and checkpoint.dtype(name) == "F32"


class File:
    """As safetensors opens one."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def get_slice(self, name: str) -> "Slice":
        return Slice(self._tensors[name])


class Slice:
    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def __getitem__(self, place: int) -> torch.Tensor:
        return self._tensor[place]


def test_stacked_tensors_may_be_transposed_with_gate_and_up_in_turn(base: Path) -> None:
    spec, stacked = ModelConfig.from_folder(base).spec, StackedSpec(is_transposed=True, is_interleaved=True)
    for layer in spec.layers:
        object.__setattr__(layer.feed_forward, "stacked", stacked)
    wanted = stored(base)
    gate, up, down = (
        torch.stack([wanted[f"{LAYER}.{number}.{part}.weight"] for number in range(EXPERTS)])
        for part in ("gate_proj", "up_proj", "down_proj")
    )
    whole = torch.stack([gate, up], dim=2).flatten(1, 2).transpose(1, 2)
    file = File({"a": whole, "b": down.transpose(1, 2)})
    tensors = {f"{LAYER}.gate_up_proj": StoredTensor(file, "a"), f"{LAYER}.down_proj": StoredTensor(file, "b")}
    split_stacked(spec, tensors)
    assert set(tensors) == {name for name in wanted if name.startswith(LAYER)}
    for name, tensor in tensors.items():
        assert torch.equal(tensor.read(), wanted[name]) and tensor.shape() == tuple(wanted[name].shape), name


def drop(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def put(name: str, *shape: int) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.__setitem__(name, torch.zeros(shape))


def stack_too_many(tensors: dict[str, torch.Tensor]) -> None:
    stack(tensors)
    tensors[f"{LAYER}.down_proj"] = torch.zeros(EXPERTS + 1, 48, 20)


def stack_beside_one(tensors: dict[str, torch.Tensor]) -> None:
    one = tensors[f"{LAYER}.3.up_proj.weight"]
    stack(tensors)
    tensors[f"{LAYER}.3.up_proj.weight"] = one


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop(f"{LAYER}.3.up_proj.weight"), rf"missing.*{LAYER}\.3\.up_proj\.weight"),
        (drop("model.layers.0.mlp.gate.weight"), r"missing.*layers\.0\.mlp\.gate\.weight"),
        (put(f"{LAYER}.{EXPERTS}.up_proj.weight", 20, 48), rf"unexpected.*{LAYER}\.{EXPERTS}\.up_proj\.weight"),
        (put(f"{LAYER}.2.down_proj.weight", 48, 21), rf"mis-shaped.*{LAYER}\.2\.down_proj\.weight is \[48, 21\]"),
        (put("model.layers.0.mlp.gate.weight", EXPERTS - 1, 48), r"mis-shaped.*mlp\.gate\.weight"),
        (stack_too_many, rf"{LAYER}\.down_proj is \[7, 48, 20\], and the model's 6 experts need \[6, 48, 20\]"),
        (stack_beside_one, rf"{LAYER}\.gate_up_proj and {LAYER}\.3\.up_proj\.weight, which are the same"),
    ],
    ids=["missing expert", "missing router", "one too many", "shape", "router", "stacked count", "twice"],
)
def test_tensors_that_do_not_fit_are_named(
    base: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        opened(changed(base, tmp_path / "changed", change))


QWEN3: Final = Qwen3MoeConfig(**SHAPE, num_experts=EXPERTS, moe_intermediate_size=20, num_experts_per_tok=2).to_dict()
MIXTRAL: Final = MixtralConfig(**SHAPE, num_local_experts=4).to_dict()


@pytest.mark.parametrize(
    ("raw", "fields", "words"),
    [
        (QWEN3, {"num_experts": 0}, "num_experts as a positive integer, got 0"),
        (QWEN3, {"num_experts": True}, "num_experts as a positive integer, got True"),
        (QWEN3, {"num_experts_per_tok": 7}, "each token has 7 of 6 experts"),
        (QWEN3, {"moe_intermediate_size": -3}, "moe_intermediate_size as a positive integer"),
        (QWEN3, {"mlp_only_layers": "1"}, "mlp_only_layers must be a list"),
        (QWEN3, {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid' is not supported for this family; 'softmax' is"),
        (QWEN3, {"n_group": 4}, "n_group 4 is not supported"),
        (QWEN3, {"routed_scaling_factor": 2.5}, "routed_scaling_factor 2.5 is not supported"),
        (QWEN3, {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size 64 is not supported"),
        (MIXTRAL, {"norm_topk_prob": False}, "norm_topk_prob False is not supported for this family; True is"),
        (MIXTRAL, {"num_local_experts": 1}, "each token has 2 of 1 experts"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) and len(value) < 3 else "",
)
def test_routing_that_the_family_has_not_is_refused_by_name(
    raw: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    architecture = "MixtralForCausalLM" if raw is MIXTRAL else "Qwen3MoeForCausalLM"
    with pytest.raises(ValueError, match=words):
        parse_config(raw | {"architectures": [architecture]} | fields, {})
    spec = parse_config(raw | {"architectures": [architecture]}, {}).spec
    assert all(isinstance(layer.feed_forward, ExpertsSpec) for layer in spec.layers)


def test_one_tensor_for_all_experts_is_not_quantized_to_a_checkpoint(base: Path, tmp_path: Path) -> None:
    open_unquantized(base)
    folder = changed(base, tmp_path / "stacked", stack)
    with pytest.raises(
        ValueError, match=r"Qwen3MoeForCausalLM in .*/stacked stores all experts of a layer in one tensor"
    ):
        open_unquantized(folder)


def test_every_expert_is_expected_by_its_own_name(base: Path) -> None:
    config = ModelConfig.from_folder(base)
    assert set(expected_tensors(config, Checkpoint(base, config.spec))) == set(stored(base))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit what a process writes to")
@pytest.mark.parametrize(("linears", "is_stacked"), [("none", False), ("none", True), ("int8", True), ("int4", False)])
def test_loading_takes_the_served_weights_and_less_than_a_layer(tmp_path: Path, linears: str, is_stacked: bool) -> None:
    """Layers of 38 MB in bfloat16, which are read expert by expert."""
    sizes = {"hidden_size": 512, "moe_intermediate_size": 768, "num_hidden_layers": 3, "num_experts": 16}
    config = Qwen3MoeConfig(**SHAPE | sizes, num_experts_per_tok=2)
    base = make_base(tmp_path / "float", config)

    def narrow(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            tensors[name] = tensor.bfloat16()
        for layer in range(3 if is_stacked else 0):
            stack(tensors, f"model.layers.{layer}.mlp.experts", 16)

    folder = changed(base, tmp_path / "base", narrow)
    config_file = folder / "config.json"
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | {"dtype": "bfloat16"}))
    call = f"loads_within({str(folder)!r}, {linears!r}, 'none', layers=[-1, 1])"
    assert print_alone("tests.engine.model.load_within", call, mapped_from=1 << 16) == "[False, True]\n"
