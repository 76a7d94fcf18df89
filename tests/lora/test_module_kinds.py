"""A base of no known family: two shapes at one path, layers without a kind, equal last names, norms with a bias."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loraplex.lora.apply.apply import add_lora, lora_reference
from loraplex.lora.apply.batch import LoraBatch
from loraplex.lora.apply.norm_vectors import norm_vectors
from loraplex.lora.files.manifest import EMBEDDING, HEAD, BaseSignature, ModuleKind
from loraplex.lora.files.tensor_names import Location, locate
from loraplex.lora.files.values import Bits
from loraplex.lora.inspection.inspection import inspect_adapter
from loraplex.lora.residency.pool import AdapterPool

from .adapters import Tensors, make_config, read_manifest, write_adapter
from .house import held_slot
from .page_reading import read_back

ROOT = "base_model.model."
IN_LAYER = f"{ROOT}model.language_model.h."
LAYERS, HIDDEN, VOCABULARY = 6, 16, 32
WIDE, NARROW = (2, 5), (0, 1, 3)


def linear(path: str, inputs: int, outputs: int, layers: tuple[int, ...], gains_from: str | None = None) -> ModuleKind:
    return ModuleKind(path, "linear", inputs, outputs, layers, gains_from=gains_from)


EVERY = tuple(range(LAYERS))
BASE = BaseSignature(
    "made up",
    LAYERS,
    {
        "ln_1": ModuleKind("ln_1", "norm", 0, HIDDEN, (0, 1, 2, 3, 5), has_bias=True),
        "ln_f": ModuleKind("ln_f", "norm", 0, HIDDEN, has_bias=True),
        "rms": ModuleKind("attn.rms", "norm", 0, 4, WIDE),
        EMBEDDING: ModuleKind("wte", "embedding", VOCABULARY, HIDDEN),
        HEAD: ModuleKind("lm_head", "head", HIDDEN, VOCABULARY),
        "q": linear("attn.q", HIDDEN, 12, NARROW),
        "q.2": linear("attn.q", HIDDEN, 24, WIDE),
        "v": linear("attn.v", HIDDEN, 6, NARROW),
        "attn.c_proj": linear("attn.c_proj", 12, HIDDEN, NARROW),
        "mlp.c_proj": linear("mlp.c_proj", 20, HIDDEN, EVERY, gains_from="up"),
        "up": linear("mlp.up", HIDDEN, 20, EVERY),
        "mix": linear("mix.in", HIDDEN, 10, (4,)),
        "project": ModuleKind("project", "linear", HIDDEN, 8),
    },
    name="acme/odd",
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    prefix="model.language_model.",
    layers_path="h",
    name_prefixes=("transformer.", ""),
)
PLACES = {
    "attn.q": (*NARROW, *WIDE), "attn.v": NARROW, "attn.c_proj": NARROW, "mlp.c_proj": EVERY, "mlp.up": EVERY,
    "mix.in": (4,),
}  # fmt: skip
SHAPES = {path: {layer: BASE.modules[BASE.kinds_in_layers[path][layer]] for layer in PLACES[path]} for path in PLACES}


def tensors(*paths: str, rank: int = 3, prefix: str = "model.language_model.", seed: int = 0) -> Tensors:
    random, found = np.random.default_rng(seed), dict[str, np.ndarray[Any, Any]]()
    for path in paths:
        for layer, module in SHAPES[path].items():
            stem = f"{ROOT}{prefix}h.{layer}.{path}"
            found[f"{stem}.lora_A.weight"] = random.normal(size=(rank, module.inputs)).astype(np.float32)
            found[f"{stem}.lora_B.weight"] = random.normal(size=(module.outputs, rank)).astype(np.float32)
    return found


def config(*targets: str, **others: Any) -> dict[str, Any]:
    named = {"target_modules": list(targets), "base_model_name_or_path": "acme/odd", "r": 3, "lora_alpha": 6}
    return make_config(**named | others)


def refusals(folder: Path) -> str:
    text = (folder / "adapter_config.json").read_bytes()
    return "; ".join(f.message for f in inspect_adapter(text, folder / "adapter_model.safetensors", BASE).failures())


class Norms:
    """BaseModules of which only norms are asked."""

    def columns(self, layer: int, kind: str, first: int, last: int) -> torch.Tensor:
        raise AssertionError

    def bias(self, layer: int, kind: str) -> torch.Tensor:
        return torch.full((BASE.modules[kind].outputs,), 100.0 + layer)

    def norm(self, layer: int, kind: str) -> torch.Tensor:
        return torch.full((BASE.modules[kind].outputs,), 200.0 + layer)

    def stored_rows(self, kind: str) -> tuple[Bits, str]:
        raise AssertionError


@pytest.fixture
def pool() -> AdapterPool:
    return AdapterPool(BASE, memory=1 << 20, slots=3, dtype=torch.float32, device=torch.device("cpu"), modules=Norms())


def load(pool: AdapterPool, folder: Path) -> int:
    """The adapter's slot."""
    digest = read_manifest(folder, BASE).digest
    pool.register(digest, str(folder))
    while not pool.acquire((digest,)):
        pool.poll()
        assert pool.failure(digest) is None, pool.failure(digest)
    return held_slot(pool, digest)


def test_pages_hold_what_each_module_has(pool: AdapterPool, tmp_path: Path) -> None:
    found = tensors(*PLACES)
    slot = load(pool, write_adapter(tmp_path, config("q", "v", "c_proj", "up", "mix.in"), found))
    for path, modules in SHAPES.items():
        for layer in modules:
            a, b = read_back(pool.table, layer, BASE.kinds_in_layers[path][layer], slot)
            stem = f"{IN_LAYER}{layer}.{path}.lora_"
            assert np.array_equal(a.numpy(), found[f"{stem}A.weight"])
            assert np.array_equal(b.numpy(), found[f"{stem}B.weight"])


def test_pages_are_paid_for_modules_alone(pool: AdapterPool, tmp_path: Path) -> None:
    """Of q.2 two layers have one, of mix one has: a page has room for as many, and other kinds have none."""
    load(pool, write_adapter(tmp_path, config("q", "mix.in"), tensors("attn.q", "mix.in")))
    sizes = [4 * 8 * modules for modules in (3 * (16 + 12), 2 * (16 + 24), 16 + 10)]
    assert pool.bytes_used == sum(-(-size // 128) * 128 for size in sizes)


@pytest.mark.parametrize(("kinds", "layer"), [(("q", "v"), 3), (("q.2",), 5), (("mix",), 4), (("mlp.c_proj",), 2)])
def test_each_layer_has_its_own_modules(kinds: tuple[str, ...], layer: int, pool: AdapterPool, tmp_path: Path) -> None:
    found = tensors(*PLACES)
    slot = load(pool, write_adapter(tmp_path, config("q", "v", "c_proj", "up", "mix.in"), found))
    batch = LoraBatch.build(pool.table, torch.full((5,), slot, dtype=torch.int32), torch.ones(5))
    assert batch is not None
    modules = [BASE.modules[kind] for kind in kinds]
    x = torch.randn(5, modules[0].inputs)
    wanted = []
    for module in modules:
        stem = f"{IN_LAYER}{layer}.{module.path}.lora_"
        a, b = (torch.from_numpy(found[f"{stem}{side}.weight"]) for side in "AB")
        wanted.append(2 * x @ a.T @ b.T)
    for add in (add_lora, lora_reference):
        y = torch.zeros(5, sum(module.outputs for module in modules))
        add(y, x, batch, layer, kinds)
        torch.testing.assert_close(y, torch.cat(wanted, 1), atol=1e-4, rtol=1e-5)
    with pytest.raises(KeyError):
        add_lora(torch.zeros(5, 10), torch.zeros(5, 16), batch, 0, ("mix",))


def test_a_norm_with_a_bias_brings_both(pool: AdapterPool, tmp_path: Path) -> None:
    """Of layers and ends that the adapter leaves alone, weight and bias are the base's."""
    weight, bias = (np.arange(HIDDEN, dtype=np.float32) + offset for offset in (1, 50))
    own = {f"{ROOT}model.language_model.ln_f.{part}": value for part, value in (("weight", weight), ("bias", bias))}
    only = {f"{IN_LAYER}{layer}.ln_1.bias": bias for layer in (1, 5)}
    settings = config("v", modules_to_save=["ln_f"], bias="all")
    slot = load(pool, write_adapter(tmp_path, settings, tensors("attn.v") | own | only))
    batch = LoraBatch.build(pool.table, torch.tensor([slot], dtype=torch.int32), torch.ones(1))
    assert batch is not None and batch.changed == {"ln_1", "ln_f"}
    vectors = {layer: norm_vectors(batch, slot, layer, "ln_1", HIDDEN) for layer in (0, 1, 2, 3, 5)}
    for layer, found in vectors.items():
        assert found is not None
        assert found[0].eq(200 + layer).all()
        assert np.array_equal(found[1].numpy(), bias if layer in (1, 5) else np.full(HIDDEN, 100.0 + layer))
    last = norm_vectors(batch, slot, 0, "ln_f", HIDDEN)
    assert last is not None and np.array_equal(last.numpy(), np.stack([weight, bias]))
    assert norm_vectors(batch, slot, 2, "rms", 4) is None


@pytest.mark.parametrize("prefix", ["model.language_model.", "transformer.", ""])
def test_the_part_may_have_been_trained_alone(prefix: str, tmp_path: Path) -> None:
    """Then its modules have other names, by which also target_modules calls them."""
    named = tensors("attn.v", "mlp.c_proj", prefix=prefix)
    targets = [name.removeprefix(ROOT).removesuffix(".lora_A.weight") for name in named if name.endswith("A.weight")]
    manifest = read_manifest(write_adapter(tmp_path / "0", config(*targets), named), BASE)
    usual = write_adapter(tmp_path / "1", config("v", "mlp.c_proj"), tensors("attn.v", "mlp.c_proj"))
    assert manifest.digest == read_manifest(usual, BASE).digest
    assert manifest.target_modules == ("mlp.c_proj", "v")


def test_all_linear_is_every_linear(tmp_path: Path) -> None:
    """The one outside the layers among them, and two shapes at one path are one to people."""
    once = {
        f"{ROOT}model.language_model.project.lora_A.weight": np.ones((3, HIDDEN), np.float32),
        f"{ROOT}model.language_model.project.lora_B.weight": np.ones((8, 3), np.float32),
    }
    settings = config() | {"target_modules": "all-linear", "fan_in_fan_out": True}
    manifest = read_manifest(write_adapter(tmp_path / "0", settings, tensors(*PLACES) | once), BASE)
    assert manifest.target_modules == ("attn.c_proj", "mix", "mlp.c_proj", "project", "q", "up", "v")
    assert "without tensors: project" in refusals(write_adapter(tmp_path / "1", settings, tensors(*PLACES)))


def test_a_gain_of_inputs_is_one_of_what_makes_them(tmp_path: Path) -> None:
    named = {f"{IN_LAYER}{layer}.mlp.c_proj.ia3_l": np.full((1, 20), 2, np.float32) for layer in EVERY}
    settings = {"peft_type": "IA3", "target_modules": ["mlp.c_proj"], "feedforward_modules": ["mlp.c_proj"]}
    modules = read_manifest(write_adapter(tmp_path / "0", settings, named), BASE).modules
    assert [(module.layer, module.kind) for module in modules] == [(layer, "up") for layer in EVERY]
    named = {f"{IN_LAYER}{layer}.attn.v.ia3_l": np.full((1, 16), 2, np.float32) for layer in NARROW}
    settings |= {"target_modules": ["v"], "feedforward_modules": ["v"]}
    assert "supported on mlp.c_proj only" in refusals(write_adapter(tmp_path / "1", settings, named))


STRANGE = {
    f"{IN_LAYER}4.attn.v.lora_A.weight": "layer 4 of the base has no attn.v",
    f"{IN_LAYER}6.attn.v.lora_A.weight": "the base has 6 layers, numbered from 0",
    f"{IN_LAYER}04.mix.in.lora_A.weight": "not adapter tensors for a linear layer",
    f"{IN_LAYER}0.c_proj.lora_A.weight": "the base has no such module",
    f"{IN_LAYER}2.attn.rms.bias": "not the bias of a linear layer of the base",
    f"{IN_LAYER}0.mlp.up.weight": "whole linear layers are not supported",
    f"{ROOT}model.vision.h.0.attn.v.lora_A.weight": "not adapter tensors for a linear layer",
    f"{ROOT}model.language_model.lm_head.lora_A.weight": "not adapter tensors for a linear layer",
    f"{ROOT}lm_head": "not adapter tensors for a linear layer",
    IN_LAYER: "not adapter tensors for a linear layer",
}


@pytest.mark.parametrize("name", STRANGE)
def test_tensors_of_no_module_are_told(name: str) -> None:
    found = locate(name, BASE)
    assert isinstance(found, str) and found.startswith(STRANGE[name])


def test_the_head_and_what_the_base_has_once_are_found() -> None:
    for name, kind in (("lm_head", HEAD), ("wte", EMBEDDING), ("model.language_model.project", "project")):
        suffix = "lora_embedding_A" if kind == EMBEDDING else "lora_A.weight"
        found = locate(f"{ROOT}{name}.{suffix}", BASE)
        assert isinstance(found, Location) and (found.place.kind, str(found.place), found.part) == (kind, kind, "A")


@pytest.mark.parametrize(
    ("settings", "lost", "added", "reason"),
    [
        ({}, f"{IN_LAYER}5.attn.q.lora_", {}, "names modules without tensors: q.2 of layer 5"),
        ({}, "", {f"{IN_LAYER}0.ln_1.bias": HIDDEN}, "a trained bias of a norm, which adapter_config.json does not"),
        ({"modules_to_save": ["ln_f"]}, "", {f"{ROOT}ln_f.weight": HIDDEN}, "not in the file: ln_f"),
        ({"bias": "all"}, "", {f"{IN_LAYER}0.ln_1.bias": HIDDEN + 1}, "ln_1 of layer 0: bias is [17], not [16]"),
        ({"bias": "all"}, "", {f"{IN_LAYER}2.attn.rms.bias": 4}, "not the bias of a linear layer of the base"),
    ],
)
def test_refused(settings: dict[str, Any], lost: str, added: dict[str, int], reason: str, tmp_path: Path) -> None:
    found = {name: value for name, value in tensors("attn.q").items() if not lost or not name.startswith(lost)}
    found |= {name: np.ones(size, np.float32) for name, size in added.items()}
    assert reason in refusals(write_adapter(tmp_path, config("q", **settings), found))


def test_two_kinds_at_one_place_are_a_mistake_of_the_base() -> None:
    modules = {"q": linear("attn.q", 8, 8, (0, 1)), "q.2": linear("attn.q", 8, 9, (1,))}
    with pytest.raises(AssertionError, match=r"two kinds are attn.q of layer 1"):
        locate(f"{ROOT}model.layers.0.attn.q.lora_A.weight", BaseSignature("x", 2, modules))
