"""The digest of a model that certificates name: no byte that decides an answer may change under it."""

import os
from pathlib import Path

import pytest

from loraplex.engine.model.identity.digest import DECIDING, files_state, model_digest
from loraplex.engine.model.identity.fingerprint import SAMPLE_BYTES, SAMPLES, fingerprint_weights

SIZE = 4 * SAMPLES * SAMPLE_BYTES
"""Of which a fingerprint reads a quarter."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in (*DECIDING, "model-1.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    with (tmp_path / "model-2.safetensors").open("wb") as file:
        file.truncate(SIZE)
    return tmp_path


def put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_single_byte_of_the_weights_where_no_sample_is_taken(model: Path) -> None:
    before, fingerprint = model_digest(model), fingerprint_weights(model, "")
    put(model / "model-2.safetensors", 2 * SAMPLE_BYTES, b"x")
    assert fingerprint_weights(model, "") == fingerprint
    assert model_digest(model) != before


@pytest.mark.parametrize("name", [*DECIDING, "model-1.safetensors"])
def test_every_file_that_decides_counts_by_its_name_and_content(model: Path, name: str) -> None:
    before = {model_digest(model)}
    (model / name).write_bytes(b"[]")
    before.add(model_digest(model))
    (model / name).rename(model / "other.safetensors")
    before.add(model_digest(model))
    (model / "other.safetensors").unlink()
    before.add(model_digest(model))
    assert len(before) == 4


def test_what_decides_nothing_changes_nothing(model: Path) -> None:
    digest, state = model_digest(model), files_state(model)
    (model / "README.md").write_text("a model")
    assert (model_digest(model), files_state(model)) == (digest, state)


def test_a_file_that_was_written_is_seen_though_its_size_and_time_are_as_before(model: Path) -> None:
    path, state = model / "model-1.safetensors", files_state(model)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    put(path, 0, b"[]")
    os.utime(path, ns=times)
    assert path.stat().st_mtime_ns == times[1] and files_state(model) != state
