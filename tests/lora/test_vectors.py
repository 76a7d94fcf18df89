"""Adapters with vectors: what their files must say, what becomes of it beside a base, and how they load."""

import itertools
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from loraplex.lora.inspection.inspection import inspect_adapter
from loraplex.lora.residency.page_copier import PageCopier, Streams
from loraplex.lora.residency.pool import AdapterPool
from loraplex.lora.residency.residency import State
from tests.engine.inline_stream import InlineStream
from tests.engine.virtual_stream import VirtualStream
from tests.lora.signatures import KINDS

from .adapters import BASE, Tensors, make_config, make_tensors, module_path, read_manifest, write_adapter
from .house import held_slot

TARGETS = ("q_proj", "down_proj")


class RandomBase:
    """Dense linears with biases on some; counts how often it is asked."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.asked = 0
        self.weights = {
            (layer, kind): torch.randn(shape[1], shape[0], generator=generator)
            for layer in range(BASE.num_layers)
            for kind, shape in BASE.linears.items()
        }

    def columns(self, layer: int, kind: str, first: int, last: int) -> torch.Tensor:
        self.asked += 1
        return self.weights[layer, kind][:, first:last].T

    def bias(self, layer: int, kind: str) -> torch.Tensor:
        outputs = BASE.linears[kind][1]
        return torch.arange(outputs) / outputs if kind == "q_proj" else torch.zeros(outputs)


def vector(layer: int, kind: str, part: str) -> str:
    return f"base_model.model.{module_path(layer, kind)}.{part}"


def with_vectors(part: str, kinds: tuple[str, ...] = TARGETS, seed: int = 1) -> Tensors:
    random = np.random.default_rng(seed)
    return {
        vector(layer, kind, part): random.uniform(0.5, 1.5, BASE.linears[kind][1]).astype(np.float32)
        for layer in range(BASE.num_layers)
        for kind in kinds
    }


def ia3_config(**changes: Any) -> dict[str, Any]:
    config = {"peft_type": "IA3", "target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
    return config | {"task_type": "CAUSAL_LM"} | changes


def ia3_tensors() -> Tensors:
    random = np.random.default_rng(2)
    shapes = {"k_proj": (12, 1), "down_proj": (1, 40)}
    return {
        vector(layer, kind, "ia3_l"): random.uniform(0.5, 1.5, shape).astype(np.float32)
        for layer in range(BASE.num_layers)
        for kind, shape in shapes.items()
    }


MAGNITUDES = with_vectors("lora_magnitude_vector")
BIASES = with_vectors("lora_B.bias")
REFUSED: dict[str, tuple[str, dict[str, Any], Tensors]] = {
    "magnitudes-unannounced": (
        "which adapter_config.json does not mention",
        make_config(),
        make_tensors() | MAGNITUDES,
    ),
    "magnitudes-missing": ("lacks a magnitude vector", make_config(use_dora=True), make_tensors()),
    "one-magnitude-missing": (
        "q_proj of layer 1 lacks a magnitude vector",
        make_config(use_dora=True),
        make_tensors() | {name: tensor for name, tensor in MAGNITUDES.items() if "layers.1.self_attn" not in name},
    ),
    "magnitudes-too-short": (
        "lora_magnitude_vector is [5], not [24]",
        make_config(use_dora=True),
        make_tensors() | MAGNITUDES | {vector(0, "q_proj", "lora_magnitude_vector"): np.ones(5, np.float32)},
    ),
    "biases-unannounced": ("has a bias of lora_B", make_config(), make_tensors() | BIASES),
    "biases-missing": ("lacks a bias of lora_B", make_config(lora_bias=True), make_tensors()),
    "base-bias-unannounced": ("has a trained bias", make_config(), make_tensors() | with_vectors("base_layer.bias")),
    "bias-setting": ("it must be one of none, all, lora_only", make_config(bias="some"), make_tensors()),
    "ia3-of-lora": ("has lora_A, which", ia3_config(target_modules=list(TARGETS)), make_tensors()),
    "lora-with-ia3": ("has an IA3 vector", make_config(), make_tensors() | ia3_tensors()),
    "ia3-input-of-q": (
        "supported on down_proj only",
        ia3_config(target_modules=["q_proj"], feedforward_modules=["q_proj"]),
        {vector(layer, "q_proj", "ia3_l"): np.full((1, 16), 2, np.float32) for layer in range(2)},
    ),
    "ia3-transposed": (
        "ia3_l is [1, 12], not [12, 1]",
        ia3_config(target_modules=["k_proj"], feedforward_modules=[]),
        {vector(layer, "k_proj", "ia3_l"): np.full((1, 12), 2, np.float32) for layer in range(2)},
    ),
    "ia3-untrained": (
        "no effect",
        ia3_config(),
        {name: np.ones_like(tensor) for name, tensor in ia3_tensors().items()},
    ),
    "dora-untrained": (
        "no effect",
        make_config(use_dora=True),
        {name: 0 * tensor if "lora_B" in name else tensor for name, tensor in make_tensors().items()} | MAGNITUDES,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    reason, config, tensors = REFUSED[name]
    folder = write_adapter(tmp_path, config, tensors)
    inspection = inspect_adapter(
        (folder / "adapter_config.json").read_bytes(), folder / "adapter_model.safetensors", BASE
    )
    assert inspection.manifest is None
    assert reason in " | ".join(finding.message for finding in inspection.failures())


def test_a_vector_over_inputs_is_refused_with_what_to_train_instead(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, *REFUSED["ia3-input-of-q"][1:])
    config = (folder / "adapter_config.json").read_bytes()
    [finding] = inspect_adapter(config, folder / "adapter_model.safetensors", BASE).failures()
    assert finding.remedy == "train with feedforward_modules set to down_proj only, or none"


def test_vectors_belong_to_the_identity(tmp_path: Path) -> None:
    variants = [MAGNITUDES, with_vectors("lora_magnitude_vector", seed=7)]
    config = make_config(use_dora=True)
    digests = [
        read_manifest(write_adapter(tmp_path / str(i), config, make_tensors() | magnitudes)).digest
        for i, magnitudes in enumerate(variants)
    ]
    assert digests[0] != digests[1]


def open_pool(base: RandomBase, memory: int = 1 << 20, streams: Streams | None = None) -> AdapterPool:
    cpu = torch.device("cpu")
    return AdapterPool(BASE, memory=memory, slots=4, dtype=torch.bfloat16, device=cpu, modules=base, streams=streams)


def load(pool: AdapterPool, digest: str, folder: Path) -> int:
    """Its slot, and how many polls it took."""
    pool.register(digest, str(folder))
    polls = 0
    while not pool.acquire((digest,)):
        pool.poll()
        polls += 1
        assert pool.failure(digest) is None and polls < 1_000_000
    return polls


def vectors_of(pool: AdapterPool, digest: str, layer: int, kind: str) -> torch.Tensor:
    """[2, out]: gain and shift."""
    width, start = BASE.linears[kind][1], int(pool.table.vectors[held_slot(pool, digest), KINDS.index(kind)])
    assert start >= 0
    return pool.table.floats[start + layer * 2 * width :][: 2 * width].view(2, width)


def test_magnitudes_become_gains_of_the_base_they_meet(tmp_path: Path) -> None:
    tensors = make_tensors() | MAGNITUDES
    folder = write_adapter(tmp_path, make_config(use_dora=True), tensors)
    base, digest = RandomBase(), read_manifest(folder).digest
    pool = open_pool(base)
    load(pool, digest, folder)
    for layer, kind in ((0, "q_proj"), (1, "down_proj")):
        served = {
            side: torch.from_numpy(tensors[vector(layer, kind, f"lora_{side}.weight")]).bfloat16().double()
            for side in "AB"
        }
        weight = base.weights[layer, kind].double() + 2.0 * served["B"] @ served["A"]
        gain = torch.from_numpy(MAGNITUDES[vector(layer, kind, "lora_magnitude_vector")]).double() / weight.norm(dim=1)
        found = vectors_of(pool, digest, layer, kind).double()
        torch.testing.assert_close(found[0], gain, rtol=1e-6, atol=0)
        torch.testing.assert_close(found[1], (1 - gain) * base.bias(layer, kind), rtol=1e-5, atol=1e-6)
    pool.close()


class NoWaits(TorchDispatchMode):
    """Whoever asks a device for a number waits for all that was enqueued there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "the engine thread waits for the device"
        return func(*args, **(kwargs or {}))


def test_beside_a_device_nothing_waits_for_gains_and_they_are_the_same(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, make_config(use_dora=True), make_tensors() | MAGNITUDES)
    digest, found = read_manifest(folder).digest, []
    for streams in (None, Streams(InlineStream(), InlineStream())):
        pool = open_pool(RandomBase(), streams=streams)
        with NoWaits() if streams else nullcontext():
            load(pool, digest, folder)
        found.append(vectors_of(pool, digest, 1, "down_proj"))
        pool.close()
    assert torch.equal(*found)


def test_what_comes_from_the_device_is_there_when_its_event_has_come() -> None:
    steps = VirtualStream(random.Random(0))
    fetching = PageCopier(torch.device("cpu"), Streams(steps, steps)).fetch(torch.tensor([[3, 4]]))
    assert next(fetching) is None and next(fetching) is None
    steps.record().synchronize()
    with pytest.raises(StopIteration) as ended:
        next(fetching)
    assert ended.value.value.tolist() == [[3, 4]]


def test_the_base_is_asked_about_one_linear_between_two_steps(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, make_config(use_dora=True), make_tensors() | MAGNITUDES)
    base, digest = RandomBase(), read_manifest(folder).digest
    pool = open_pool(base)
    pool.register(digest, str(folder))
    seen = [0]
    while not pool.acquire((digest,)):
        pool.poll()
        seen.append(base.asked)
        assert pool.check_integrity() == []
    assert base.asked == 4 and max(after - before for before, after in itertools.pairwise(seen)) == 1
    pool.close()


def test_an_adapter_pays_for_its_vectors_and_gives_them_back(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, ia3_config(), ia3_tensors())
    digest, pool = read_manifest(folder).digest, open_pool(RandomBase())
    load(pool, digest, folder)
    (status,) = pool.statuses()
    assert status.state is State.RESIDENT and status.pages == 2
    assert pool.bytes_used >= 2 * 2 * (12 + 40) * 4
    found = vectors_of(pool, digest, 1, "up_proj")
    assert torch.equal(found[0], torch.from_numpy(ia3_tensors()[vector(1, "down_proj", "ia3_l")]).flatten())
    assert not found[1].any()
    slot = held_slot(pool, digest)
    pool.release(digest)
    pool.evict(digest)
    assert pool.bytes_used == 0 and bool((pool.table.vectors[slot] == -1).all())
    pool.close()


def test_an_output_without_weight_is_refused_in_words(tmp_path: Path) -> None:
    folder = write_adapter(
        tmp_path,
        make_config(use_dora=True),
        {name: 0 * tensor if "layers.0.self_attn" in name else tensor for name, tensor in make_tensors().items()}
        | MAGNITUDES,
    )
    base, digest = RandomBase(), read_manifest(folder).digest
    base.weights[0, "q_proj"][3] = 0
    pool = open_pool(base)
    pool.register(digest, str(folder))
    while pool.failure(digest) is None:
        assert not pool.acquire((digest,))
        pool.poll()
    assert "q_proj of layer 0 has an output of no weight" in str(pool.failure(digest)) and pool.is_unfit(digest)
    assert pool.bytes_used == 0 and pool.check_integrity() == []
    pool.close()
