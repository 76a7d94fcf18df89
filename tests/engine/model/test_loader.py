import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save_file
from transformers import AutoModelForCausalLM

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.folder import resolve_model_folder
from loraplex.engine.model.loader import Checkpoint
from tests.checkpoints import make_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path)


def verify(folder: Path) -> None:
    Checkpoint(folder).verify(ModelConfig.from_folder(folder))


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        key = name.replace("__", ".")
        tensors.pop(key, None)
        if tensor is not None:
            tensors[key] = tensor
    save_file(tensors, folder / "model.safetensors")


def shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


def test_a_sharded_checkpoint_holds_the_same_tensors(folder: Path) -> None:
    single = load_file(folder / "model.safetensors")
    shard(folder)
    verify(folder)
    checkpoint = Checkpoint(folder)
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in single.items())


def test_every_misfit_is_named_at_once(folder: Path) -> None:
    rewrite(
        folder,
        model__layers__1__mlp__up_proj__weight=None,
        model__layers__0__self_attn__q_proj__bias=torch.zeros(64),
        model__norm__weight=torch.zeros(65),
    )
    with pytest.raises(ValueError) as refusal:
        verify(folder)
    words = str(refusal.value)
    assert "missing: model.layers.1.mlp.up_proj.weight" in words
    assert "unexpected: model.layers.0.self_attn.q_proj.bias" in words
    assert "mis-shaped: model.norm.weight is [65] instead of [64]" in words


def test_a_derived_buffer_of_old_checkpoints_is_no_misfit(folder: Path) -> None:
    rewrite(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8))
    verify(folder)


def test_only_a_tied_checkpoint_may_lack_the_head(folder: Path) -> None:
    rewrite(folder, lm_head__weight=None)
    with pytest.raises(ValueError, match=r"missing: lm_head\.weight"):
        verify(folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"tie_word_embeddings": True}))
    verify(folder)


def test_pickles_and_broken_files_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="only safetensors weights are loaded, never pickles"):
        Checkpoint(folder)
    (folder / "model.safetensors").write_bytes(b"\x80\x04junk that is no header")
    with pytest.raises(ValueError, match="not a valid safetensors file"):
        Checkpoint(folder)


@pytest.mark.parametrize("kept", [True, False], ids=["old shards", "no shards"])
def test_a_whole_file_comes_before_the_index_that_another_tool_left(folder: Path, kept: bool) -> None:
    """As transformers reads such a folder."""
    whole = (folder / "model.safetensors").read_bytes()
    shard(folder)
    for file in folder.glob("model-*.safetensors"):
        old = {name: torch.zeros_like(tensor) for name, tensor in load_file(file).items()}
        file.unlink()
        if kept:
            save_file(old, file)
    (folder / "model.safetensors").write_bytes(whole)
    checkpoint = Checkpoint(folder)
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in load(whole).items())
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert any(tensor.any() for tensor in loaded.state_dict().values())


def test_an_index_cannot_point_outside_its_folder(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../model.safetensors"}}')
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    with pytest.raises(ValueError, match=r"names \.\./model\.safetensors"):
        Checkpoint(folder)


@pytest.mark.parametrize(
    "index,words",
    [
        ('{"weight_map": {"a": ', r"index\.json is no JSON: "),
        ("[" * 100_000, r"index\.json is no JSON: "),
        ('{"metadata": {}}', r"index\.json must have a weight_map, an object of tensors"),
        ('["model.safetensors"]', r"index\.json must have a weight_map"),
        ('{"weight_map": {"a": 1}}', r"index\.json must have a weight_map"),
        ('{"weight_map": ["a"]}', r"index\.json must have a weight_map"),
    ],
)
def test_an_index_that_is_none_is_refused(folder: Path, index: str, words: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=words):
        Checkpoint(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert resolve_model_folder(str(tmp_path)) == tmp_path
    with pytest.raises(ValueError, match="does not exist"):
        resolve_model_folder(str(tmp_path / "nowhere"))
