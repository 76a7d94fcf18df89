"""Adapters written by PEFT itself arrive in the rank pages as PEFT holds them, and changed bytes never arrive."""

import hashlib
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from loraplex.lora.apply.batch import PageTable
from loraplex.lora.files.manifest import BaseSignature
from loraplex.lora.files.values import convert
from loraplex.lora.residency import weights
from loraplex.lora.residency.pages import PageStore
from loraplex.lora.residency.weights import HASHED_TOGETHER, Pages, Staging, _update, load_pages, read_contents
from tests.lora.signatures import KINDS

from ..adapters import BASE, make_adapter, make_config, make_tensors, read_manifest, tensor_name, write_adapter
from ..page_reading import read_back

LLAMA = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, head_dim=6,
    num_key_value_heads=2,
)  # fmt: skip
"""Its linears are those of BASE."""
DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
CONFIGS: list[dict[str, Any]] = [
    {"r": 8, "target_modules": ["q_proj", "v_proj"]},
    {"r": 1, "lora_alpha": 3, "target_modules": "all-linear", "task_type": "CAUSAL_LM"},
    {"r": 19, "lora_alpha": 32, "use_rslora": True, "target_modules": ["gate_proj", "up_proj", "down_proj"]},
    {"r": 4, "target_modules": ["o_proj", "q_proj"], "layers_to_transform": [1]},
    {"r": 16, "target_modules": ["self_attn.k_proj", "model.layers.0.mlp.down_proj"], "exclude_modules": ["up_proj"]},
    {
        "r": 8,
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"^model.layers.0.self_attn.q_proj": 9, "down_proj": 20, "layers.1.self_attn.q_proj": 3},
        "alpha_pattern": {"layers.1.self_attn.q_proj": 7, "q_proj": 5},
    },
]  # fmt: skip


def resident(folder: Path, digest: str, dtype: torch.dtype = torch.float32, base: BaseSignature = BASE) -> PageTable:
    """The table after the adapter was loaded into slot 0."""
    store = PageStore(base, 1 << 20, 1, dtype, torch.device("cpu"))
    store.table.arena.fill_(torch.nan)
    contents = read_contents(folder, base, store.dtype_name, None)
    room = store.reserve(contents.pages)
    assert room is not None
    store.fill(room, lambda pages: load_pages(folder, contents, base, digest, store.dtype_name, Staging(), pages))
    store.publish(room, contents)
    return store.table


def write_with_peft(folder: Path, settings: dict[str, Any], dtype: torch.dtype) -> PeftModel:
    """The model as PEFT itself reads it back: saving sorts the patterns, and their order counts."""
    torch.manual_seed(0)
    model = get_peft_model(LlamaForCausalLM(LLAMA), LoraConfig(**settings, init_lora_weights=False))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(dtype)
    model.save_pretrained(str(folder))
    return PeftModel.from_pretrained(LlamaForCausalLM(LLAMA), str(folder))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("settings", CONFIGS)
def test_pages_hold_what_peft_holds(tmp_path: Path, settings: dict[str, Any], dtype: torch.dtype) -> None:
    model = write_with_peft(tmp_path, settings, dtype)
    table = resident(tmp_path, read_manifest(tmp_path).digest)
    adapted = {name: module for name, module in model.base_model.model.named_modules() if hasattr(module, "lora_A")}
    assert adapted
    assert int((table.rank > 0).sum()) == len(adapted)
    for name, module in adapted.items():
        layer, kind = int(name.split(".")[2]), name.rsplit(".", 1)[-1]
        a, b = read_back(table, layer, kind)
        assert torch.equal(a, module.lora_A["default"].weight.float())
        assert torch.equal(b, module.lora_B["default"].weight.float())
        assert float(table.scaling[0, KINDS.index(kind), layer]) == pytest.approx(module.scaling["default"], rel=1e-6)


@pytest.mark.parametrize("settings", CONFIGS)
def test_nothing_of_a_page_stays_as_it_was(tmp_path: Path, settings: dict[str, Any]) -> None:
    write_with_peft(tmp_path, settings, torch.bfloat16)
    contents = read_contents(tmp_path, BASE, "BF16", None)
    store = PageStore(BASE, 1 << 20, 1, torch.bfloat16, torch.device("cpu"))
    room = store.reserve(contents.pages)
    assert room is not None
    digest, filled = read_manifest(tmp_path).digest, []

    def fill(pages: Pages, poison: int) -> None:
        for page in (page for found in pages.values() for page in found):
            page.fill(poison)
        load_pages(tmp_path, contents, BASE, digest, "BF16", Staging(), pages)
        filled.append([page.tobytes() for found in pages.values() for page in found])

    for poison in (0, 0x7FC1):
        store.fill(room, partial(fill, poison=poison))
    assert filled[0] == filled[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_arena_has_its_own_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    digest, folder = make_adapter(tmp_path, rank=11)
    table = resident(folder, digest, dtype)
    tensors = make_tensors(rank=11)
    for layer in range(BASE.num_layers):
        a, b = read_back(table, layer, "down_proj")
        assert torch.equal(a, torch.from_numpy(tensors[tensor_name(layer, "down_proj", "A")]).to(dtype))
        assert torch.equal(b, torch.from_numpy(tensors[tensor_name(layer, "down_proj", "B")]).to(dtype))


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_conversion_rounds_as_torch_does(source: torch.dtype, target: torch.dtype) -> None:
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32)
    values = torch.cat([(patterns << 16).view(torch.float32), torch.randn(5000) * 3e-5, torch.randn(5000)])
    values = values[values.abs() <= 65504].to(source)
    bits = values.view(torch.int32 if source is torch.float32 else torch.int16).numpy()
    converted = convert(bits.view(f"u{bits.itemsize}"), DTYPES[source], DTYPES[target])
    expected = values.to(target)
    ours = torch.from_numpy(converted.view(f"i{converted.itemsize}")).view(target)
    assert torch.equal(ours, expected)


def test_every_flipped_byte_of_the_weights_is_found(tmp_path: Path) -> None:
    digest, folder = make_adapter(tmp_path)
    file = folder / "adapter_model.safetensors"
    good = file.read_bytes()
    start = len(good) - sum(tensor.nbytes for tensor in make_tensors().values())
    for position in np.random.default_rng(0).integers(start, len(good), 40):
        damaged = bytearray(good)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="has changed on disk"):
            resident(folder, digest)
    file.write_bytes(good)
    resident(folder, digest)


@pytest.mark.parametrize("settings", [{"lora_alpha": 9}, {"alora_invocation_tokens": [5]}])
def test_changed_settings_are_found(tmp_path: Path, settings: dict[str, Any]) -> None:
    digest, folder = make_adapter(tmp_path)
    write_adapter(folder, make_config(**settings), make_tensors())
    with pytest.raises(ValueError, match="has changed on disk"):
        resident(folder, digest)


def test_a_file_cut_off_is_found(tmp_path: Path) -> None:
    digest, folder = make_adapter(tmp_path)
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ValueError, match="it is cut off"):
        resident(folder, digest)


def test_a_large_tensor_is_hashed_where_it_lies() -> None:
    shapes = [(3, 5), (0, 4), (2, HASHED_TOGETHER), (7, 1), (1, HASHED_TOGETHER), (2, 2)]
    parts = [(b"facts %d" % n, np.full(shape, n, np.uint16)) for n, shape in enumerate(shapes)]
    wanted = hashlib.sha256(b"".join(facts + bits.tobytes() for facts, bits in parts)).hexdigest()
    digest = hashlib.sha256()
    tracemalloc.start()
    try:
        _update(digest, parts)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert digest.hexdigest() == wanted
    assert most < HASHED_TOGETHER // 2


def test_the_whole_file_is_read_ahead_in_requests_that_no_system_shortens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = tmp_path / "weights", []
    path.write_bytes(bytes(3 * weights.READ_AHEAD + 5))
    monkeypatch.setattr("os.posix_fadvise", lambda file, start, count, advice: asked.append((start, count)))
    with path.open("rb", buffering=0) as file:
        weights._read_ahead(file)
    assert [start for start, _ in asked] == [place * weights.READ_AHEAD for place in range(4)]
    assert {count for _, count in asked} == {weights.READ_AHEAD}
