"""Adapters on experts, as PEFT saves a LoRA of each expert: beside PEFT and transformers, in any steps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma4TextConfig, MixtralConfig, PretrainedConfig, Qwen2MoeConfig, Qwen3MoeConfig

from loraplex.engine.model.config import base_signature
from loraplex.lora.inspection.inspection import inspect_adapter
from loraplex.lora.residency.pages import PageStore
from loraplex.lora.residency.weights import read_contents
from tests.checkpoints import make_adapter

from .expert_adapters import as_parameters, make_expert_adapter
from .parity import (
    Family,
    check_adapters_matter,
    check_certified,
    check_chunks_and_preemption,
    check_mixed_batch,
    check_shared_prefix,
    generate_alone,
    make_base,
)
from .test_mixtures import GEMMA4, QWEN2, QWEN3, SHAPE

CONFIGS: dict[str, PretrainedConfig] = {
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=5, num_experts_per_tok=2),
    "qwen3": Qwen3MoeConfig(**SHAPE, **QWEN3, norm_topk_prob=True),
    "gemma4": Gemma4TextConfig(**SHAPE, **GEMMA4),
}
PROMPTS = [
    list(range(3, 40)),
    list(range(9, 30)),
    list(range(20, 60)),
    list(range(11, 17)),
    [7, 8],
    list(range(90, 120)),
]


@pytest.fixture(scope="module", params=CONFIGS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp(request.param), CONFIGS[request.param])


def family_of(base: Path, adapters: dict[str, Path], reference: dict[str, Path] | None = None) -> Family:
    """reference: what PEFT loads instead; it wants all experts. Those of Gemma 4 as parameters."""
    names = [*adapters, None]
    reference = reference or adapters
    if json.loads((base / "config.json").read_text())["model_type"] == "gemma4_text":
        reference = {name: pefts(folder, base) for name, folder in reference.items()}
    family = Family(base, reference, [names[at % len(names)] for at in range(len(PROMPTS))], PROMPTS)
    generate_alone(family)
    family.adapters = adapters
    return family


def pefts(folder: Path, base: Path) -> Path:
    has_modules = any(".experts.0." in name for name in load_file(folder / "adapter_model.safetensors"))
    return as_parameters(folder.with_name(f"{folder.name}-parameters"), base, folder) if has_modules else folder


def test_all_experts_and_the_router(base: Path, tmp_path: Path) -> None:
    adapters = {
        "experts": make_expert_adapter(
            tmp_path / "experts", base, rank=11, others=("q_proj", "o_proj", "gate", "proj")
        ),
        "attention": make_adapter(tmp_path / "attention", base, rank=3, kinds=("q_proj", "v_proj")),
    }
    family = family_of(base, adapters)
    check_mixed_batch(family)
    check_chunks_and_preemption(family)
    check_shared_prefix(family)
    check_adapters_matter(family)
    check_certified(family, "experts")


def test_some_experts_alone(base: Path, tmp_path: Path) -> None:
    some: dict[str, Any] = {"experts": (0, 3), "others": (), "rank": 5, "seed": 3}
    own = make_expert_adapter(tmp_path / "some", base, **some)
    family = family_of(base, {"some": own}, {"some": make_expert_adapter(tmp_path / "all", base, **some, idle=True)})
    check_mixed_batch(family)
    check_adapters_matter(family)
    check_certified(family, "some")


def test_an_adapter_takes_memory_for_the_experts_that_it_has(base: Path, tmp_path: Path) -> None:
    signature = base_signature(base)
    store = PageStore(signature, 1 << 20, 2, torch.float32, torch.device("cpu"))

    def size(experts: tuple[int, ...]) -> int:
        folder = make_expert_adapter(tmp_path / str(len(experts)), base, experts=experts, others=())
        return store.count_bytes(read_contents(folder, signature, "F32", None).pages)

    assert size((0, 1, 2, 3)) == 4 * size((2,)) > 0


def test_vectors_of_experts_are_certified(tmp_path: Path) -> None:
    """DoRA beside a shared expert: PEFT's conversion to stacked tensors has neither, the certificate's forward has."""
    base = make_base(tmp_path / "base", Qwen2MoeConfig(**SHAPE, **QWEN2, shared_expert_intermediate_size=36))
    made = make_expert_adapter(tmp_path / "one", base, experts=(1, 7, 11), use_dora=True)
    check_certified(Family(base, {"one": made}, [], []), "one")


def change_shape(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = torch.randn(3, tensors[name].shape[1])


def move(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name.replace("experts.2.", "experts.77.")] = tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_shape, "A has rank 3, B has rank 4"),
        (move, "not the weights of an expert of the base"),
        (dict.pop, "has lora_B but no lora_A"),
    ],
    ids=["shape", "no such expert", "half a pair"],
)
def test_experts_that_do_not_fit_are_named(
    base: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor], str], object], words: str
) -> None:
    folder = make_expert_adapter(tmp_path / "adapter", base, experts=(2, 4))
    tensors = load_file(folder / "adapter_model.safetensors")
    name = next(name for name in tensors if "experts.2." in name and "lora_A" in name)
    change(tensors, name)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    found = inspect_adapter(
        (folder / "adapter_config.json").read_bytes(), folder / "adapter_model.safetensors", base_signature(base)
    )
    assert found.manifest is None
    said = [failure.message for failure in found.failures()]
    assert any(words in message and "experts" in message for message in said), said


def test_targets_without_tensors_are_named(base: Path, tmp_path: Path) -> None:
    folder = make_expert_adapter(tmp_path / "adapter", base, experts=(2,))
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"] = [name.replace("experts.2", "experts.1") for name in config["target_modules"]]
    found = inspect_adapter(json.dumps(config).encode(), folder / "adapter_model.safetensors", base_signature(base))
    assert found.manifest is None
    assert any("target_modules names modules without tensors" in one.message for one in found.failures())
