import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from loraplex.engine.quantize import writer as writer_module
from loraplex.engine.quantize.writer import new_checkpoint

Usage = namedtuple("Usage", "total used free")
TENSORS = {name: torch.full((4, 8), float(number)) for number, name in enumerate("abcde")}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "LICENSE", "model.safetensors", "pytorch.bin"):
        (folder / name).write_text(name)
    (folder / "model.safetensors.index.json").write_text("{}")
    return folder


def test_one_shard_and_what_goes_along(tmp_path: Path, source: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()  # an empty folder may be there
    with new_checkpoint(output, 1000) as writer:
        writer.add(TENSORS)
        writer.finish({"model_type": "llama"}, source)
        assert not any(output.iterdir())
    names = {path.name for path in output.iterdir()}
    assert names == {"config.json", "tokenizer.json", "chat_template.jinja", "LICENSE", "model.safetensors"}
    assert json.loads((output / "config.json").read_text()) == {"model_type": "llama"}
    assert load_file(output / "model.safetensors").keys() == TENSORS.keys()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "source"}


def test_shards_and_their_index(tmp_path: Path, source: Path) -> None:
    with new_checkpoint(tmp_path / "out", 1000, shard_bytes=2 * 4 * 8 * 4) as writer:
        for name, tensor in TENSORS.items():
            writer.add({name: tensor})
        writer.finish({}, source)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 5 * 128}
    shards = [f"model-0000{number}-of-00003.safetensors" for number in (1, 1, 2, 2, 3)]
    assert index["weight_map"] == dict(zip("abcde", shards, strict=True))
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / "out" / file)[name], TENSORS[name])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_an_interrupted_writer_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), new_checkpoint(tmp_path / "out", 1000, shard_bytes=1) as writer:
        writer.add(TENSORS)
        assert any(path.name.startswith(".out.") for path in tmp_path.iterdir())
        raise error
    assert not any(tmp_path.iterdir())


def test_a_disk_that_fills_up_is_said_in_words(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer_module, "save_file", full)
    with (
        pytest.raises(ValueError, match=r"could not be written, and nothing is left of it: .*No space left"),
        new_checkpoint(tmp_path / "out", 1000) as writer,
    ):
        writer.add(TENSORS)
        writer.finish({}, source)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_places_that_cannot_be_written_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").touch()
    monkeypatch.chdir(tmp_path)
    for output, words in (
        (tmp_path / "taken", "exists already and is not an empty folder"),
        (tmp_path / "taken" / "thesis.txt", "exists already"),
        (tmp_path / "no" / "where", "is no folder"),
        (tmp_path, "is the folder this runs in"),
        (Path("/proc"), "is a whole disk"),
    ):
        with pytest.raises(ValueError, match=words), new_checkpoint(output, 1):
            raise AssertionError("it was opened")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 10**9))
    with (
        pytest.raises(ValueError, match=r"takes about 2\.0 GB, but .* has 1\.0 GB free"),
        new_checkpoint(tmp_path / "out", 2 * 10**9),
    ):
        raise AssertionError("it was opened")
