"""Digests of models are taken once for a state of their files, in the background, and never of others."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from loraplex.engine.config import EngineConfig
from loraplex.engine.device.computing import Computing
from loraplex.engine.model.identity import digest as digest_module
from loraplex.engine.startup.loaded_files import LoadedFiles
from loraplex.engine.startup.scales_file import ScalesFile, write_scales_file
from loraplex.registry.certificates.certificates import Subject
from loraplex.web.certificates import digests as digests_module
from loraplex.web.certificates.digests import FILE, ModelDigests
from loraplex.web.certificates.served import ServedPath
from loraplex.web.settings.settings import Settings
from tests.checkpoints import make_checkpoint

Count = Callable[[], int]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Count:
    """How often files were read."""
    count = 0

    def counting(folder: Path) -> str:
        nonlocal count
        count += 1
        return digest_module.model_digest(folder)

    monkeypatch.setattr(digests_module, "model_digest", counting)
    return lambda: count


def test_files_are_read_once_until_they_change_also_over_a_restart(folder: Path, tmp_path: Path, taken: Count) -> None:
    digests = ModelDigests(tmp_path)
    first = digests.of(folder)
    assert first == digests.of(folder) == ModelDigests(tmp_path).of(folder) == digest_module.model_digest(folder)
    assert taken() == 1
    (folder / "model.safetensors").write_bytes(b"Weights")
    second = digests.of(folder)
    assert second == ModelDigests(tmp_path).of(folder) == digest_module.model_digest(folder) != first
    assert taken() == 2


@pytest.mark.parametrize("kept", ["", "no JSON", "[]", '{"%s": 7}', '{"%s": {"state": "another", "digest": "0"}}'])
def test_what_is_remembered_wrongly_is_read_again(folder: Path, tmp_path: Path, kept: str, taken: Count) -> None:
    (tmp_path / FILE).write_text(kept.replace("%s", str(folder)))
    assert ModelDigests(tmp_path).of(folder) == digest_module.model_digest(folder)
    assert taken() == 1


def test_where_nothing_can_be_remembered_it_is_read_all_the_same(folder: Path, tmp_path: Path) -> None:
    assert ModelDigests(tmp_path / "nowhere").of(folder) == digest_module.model_digest(folder)


def test_who_asks_while_files_are_read_is_told_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def slow(folder: Path) -> str:
        assert go.wait(60)
        return "0" * 64

    monkeypatch.setattr(digests_module, "model_digest", slow)
    digests = ModelDigests(tmp_path, patience_seconds=0.01)
    with pytest.raises(ValueError, match="are still being hashed for certificates"):
        digests.of(folder)
    go.set()
    assert digests._run(folder).result(60) == digests.of(folder) == "0" * 64


def test_files_that_change_while_they_are_read_have_no_digest(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(folder: Path) -> str:
        (folder / "model.safetensors").write_bytes(b"other")
        return "0" * 64

    with monkeypatch.context() as patched:
        patched.setattr(digests_module, "model_digest", changing)
        with pytest.raises(ValueError, match="changed while they were read"):
            ModelDigests(tmp_path).of(folder)
    assert ModelDigests(tmp_path).of(folder) == digest_module.model_digest(folder)


def test_a_folder_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    (folder / "model-2.safetensors").symlink_to("nothing")
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        ModelDigests(tmp_path).of(folder)


def test_a_base_that_was_written_after_the_start_is_not_certified(tmp_path: Path) -> None:
    """What the engine loaded is nowhere any more; a file that was only touched is the same."""
    base = make_checkpoint(tmp_path / "base")
    served = ServedPath(Settings(data_dir=tmp_path), base, lambda: Computing("numbers", {}))
    before = served.coverage(Subject(None))
    (base / "model.safetensors").touch()
    assert served.coverage(Subject(None)) == before
    weights = bytearray((base / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (base / "model.safetensors").write_bytes(weights)
    with pytest.raises(ValueError, match="files have changed since the start"):
        served.coverage(Subject(None))
    again = ServedPath(Settings(data_dir=tmp_path), base, lambda: Computing("numbers", {}))
    (base / "model.safetensors").touch()  # before anybody asked: what was loaded cannot be told any more
    with pytest.raises(ValueError, match="files have changed since the start"):
        again.coverage(Subject(None))
    anew = ServedPath(Settings(data_dir=tmp_path), base, lambda: Computing("numbers", {}))
    assert anew.coverage(Subject(None)).base != before.base


def test_an_engine_that_loaded_a_byte_more_is_not_certified_by_files_that_were_put_back(tmp_path: Path) -> None:
    """It was started again in between; the fingerprint of samples, by which engines know bases, may be the same."""
    base = make_checkpoint(tmp_path / "base")
    told = LoadedFiles.seen(EngineConfig(model=str(base)))

    def load() -> None:
        nonlocal told
        told = LoadedFiles.seen(EngineConfig(model=str(base)))

    served = ServedPath(Settings(data_dir=tmp_path), base, lambda: Computing("numbers", {}), loaded=lambda: told)
    before = served.coverage(Subject(None))
    (base / "model.safetensors").touch()
    assert served.coverage(Subject(None)) == before, "the engine goes on with what it loaded"
    load()
    assert served.coverage(Subject(None)) == before
    good = (base / "model.safetensors").read_bytes()
    (base / "model.safetensors").write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    load()
    (base / "model.safetensors").write_bytes(good)
    with pytest.raises(ValueError, match="the engine has loaded different base files since the start"):
        served.coverage(Subject(None))
    load()
    assert served.coverage(Subject(None)) == before


def test_an_engine_that_loaded_other_scales_is_not_certified_by_those_that_were_put_back(tmp_path: Path) -> None:
    base, settings = make_checkpoint(tmp_path / "base"), Settings(data_dir=tmp_path, kv_cache_dtype="int8")
    scales = settings.kv_scales_file
    write_scales(scales, 0.5)
    good = scales.read_bytes()
    told = LoadedFiles.seen(settings.engine_config(base))
    served = ServedPath(settings, base, lambda: Computing("numbers", {}), loaded=lambda: told)
    before = served.coverage(Subject(None))
    assert before.kv_cache_dtype == told.kv_cache != "int8"
    write_scales(scales, 0.25)
    other = LoadedFiles.seen(settings.engine_config(base))
    with pytest.raises(ValueError, match="the static KV-cache scales have changed since the start"):
        served.coverage(Subject(None))
    scales.write_bytes(good)
    assert served.coverage(Subject(None)) == before, "the engine goes on with what it loaded"
    for loaded in (other, told.until(other)):
        told = loaded
        with pytest.raises(ValueError, match="the engine has loaded different static KV-cache scales since"):
            served.coverage(Subject(None))
    told = LoadedFiles.seen(settings.engine_config(base))
    assert served.coverage(Subject(None)) == before


def write_scales(path: Path, value: float) -> None:
    tensors = {
        f"model.layers.{layer}.self_attn.{part}_scale": torch.tensor(value) for layer in range(2) for part in "kv"
    }
    write_scales_file(path, ScalesFile(tensors, "f" * 64, "int8", ()))


def test_files_that_are_written_while_an_engine_loads_them_are_in_no_state(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    config = EngineConfig(model=str(base))
    before = LoadedFiles.seen(config)
    assert before.base == digest_module.state_digest(base)
    assert before.until(LoadedFiles.seen(config)) == before
    (base / "model.safetensors").touch()
    after = LoadedFiles.seen(config)
    assert after.base != before.base
    assert before.until(after) == LoadedFiles(f"{before.base}; {after.base}", before.kv_cache)
