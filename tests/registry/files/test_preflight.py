import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import loraplex
from loraplex.registry.base import ServedBase
from loraplex.registry.files.artifacts import ArtifactStore, Blob
from loraplex.registry.files.preflight import Preflight
from tests.lora.adapters import BASE, encode, make_config, make_tensors, read_manifest, write_adapter

from ..helpers import put, sha256

SERVED = ServedBase("tiny", BASE)
CONFIG = json.dumps(make_config()).encode()
WEIGHTS = encode(make_tensors())


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store", free_floor=0)


def test_a_good_adapter_passes_with_what_the_manifest_says(store: ArtifactStore, tmp_path: Path) -> None:
    report = Preflight(store, SERVED).check(put(store, CONFIG), put(store, WEIGHTS))
    manifest = read_manifest(write_adapter(tmp_path / "adapter", CONFIG, WEIGHTS))
    assert report.passed
    assert report.summary is not None
    assert (report.summary.digest, report.summary.rank) == (manifest.digest, 4)
    assert report.summary.target_modules == list(manifest.target_modules)
    assert {finding.level for finding in report.findings} == {"pass"}


def test_one_that_repeats_the_base_is_refused_where_its_files_are(store: ArtifactStore, tmp_path: Path) -> None:
    """It would answer as the base does."""
    norm = np.linspace(0.5, 1.5, BASE.hidden_size, dtype=np.float32)
    (tmp_path / "model.safetensors").write_bytes(encode({"model.norm.weight": norm}))
    here = ServedBase("tiny", BASE, folder=tmp_path)
    config = put(store, json.dumps(make_config(modules_to_save=["model.norm"])).encode())
    untrained = {name: tensor * (".lora_B." not in name) for name, tensor in make_tensors().items()}
    for change, fails in ((0.0, True), (0.25, False)):
        weights = put(store, encode(untrained | {"base_model.model.model.norm.weight": norm + np.float32(change)}))
        found = [finding.message for finding in Preflight(store, here).check(config, weights).failures]
        assert [message[:29] for message in found] == ["the adapter has no effect: A,"] * fails
        assert Preflight(store, SERVED).check(config, weights).passed


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        (b"{", WEIGHTS),
        (b'{"auto_mapping": {"parent_library": "os"}}', WEIGHTS),
        (CONFIG, b"\x80\x04\x95 a pickle"),
        (CONFIG, b"\xff" * 64),
        (json.dumps(make_config(target_modules=r"(\w+\.?)+!")).encode(), WEIGHTS),
        (json.dumps(make_config(r=5)).encode(), WEIGHTS),
    ],
    ids=["no json", "imports", "pickle", "header bomb", "regular expression", "wrong rank"],
)
def test_a_bad_adapter_fails_with_reasons(store: ArtifactStore, config: bytes, weights: bytes) -> None:
    report = Preflight(store, SERVED).check(put(store, config), put(store, weights))
    assert not report.passed
    assert report.summary is None
    assert all(finding.message and finding.check != "readable" for finding in report.failures)
    assert report.failures


def test_a_checker_that_hangs_is_killed(store: ArtifactStore) -> None:
    os.mkfifo(store.blob_path(sha256(b"never comes")))
    started = time.monotonic()
    report = Preflight(store, SERVED, seconds=3).check(put(store, CONFIG), Blob(sha256(b"never comes"), 1))
    assert time.monotonic() - started < 30
    assert [finding.message for finding in report.failures] == ["Checking the files took longer than 3 s."]


def test_a_checker_that_dies_refuses_the_adapter_until_it_lives(store: ArtifactStore) -> None:
    config, weights = put(store, CONFIG), Blob(sha256(WEIGHTS), len(WEIGHTS))
    preflight = Preflight(store, SERVED)
    report = preflight.check(config, weights)
    assert [finding.check for finding in report.failures] == ["readable"]
    assert "the files crashed (FileNotFoundError" in report.failures[0].message
    put(store, WEIGHTS)
    assert preflight.check(config, weights).passed


def test_bytes_that_passed_are_not_read_again(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    preflight, config, weights = Preflight(store, SERVED), put(store, CONFIG), put(store, WEIGHTS)
    report = preflight.check(config, weights)
    monkeypatch.setattr(subprocess, "run", None)
    assert preflight.check(config, weights) is report


def test_a_label_cannot_break_a_page_or_a_database(store: ArtifactStore) -> None:
    config = json.dumps(make_config(base_model_name_or_path="a\n\u202e" + "b" * 5000)).encode()
    report = Preflight(store, SERVED).check(put(store, config), put(store, WEIGHTS))
    assert report.summary is not None
    assert report.summary.base_model == "a??" + "b" * 197
    assert all(finding.message.isprintable() for finding in report.findings)


PROBE = """
import json, os, sys
import loraplex.registry.files.preflight_worker
from loraplex.registry.files.child import limit_child

limit_child(cpu_seconds=5, memory=1 << 30, file_bytes=0)
def write():
    with open(sys.argv[1], "wb", buffering=0) as file:
        file.write(b"x")
def open_many():
    return [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
def grow():
    try:
        return bytearray(1 << 30)
    except MemoryError:
        raise OSError(0, "No memory") from None
refused = []
for attempt in (write, open_many, grow):
    try:
        attempt()
    except OSError as error:
        refused.append(error.strerror)
print(json.dumps([refused, [name for name in ("torch", "sqlalchemy", "peft") if name in sys.modules]]))
"""


def test_the_checker_can_neither_write_nor_hoard(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(Path(loraplex.__file__).parents[1])}
    command = [sys.executable, "-c", "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + PROBE]
    done = subprocess.run([*command, tmp_path / "file"], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [["File too large", "Too many open files", "No memory"], []]


def test_the_checker_sees_no_secret(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def spy(command: object, *, env: dict[str, str], **options: object) -> "subprocess.CompletedProcess[bytes]":
        seen.append(env)
        return subprocess.CompletedProcess([], 1, b"", b"")

    monkeypatch.setenv("LORAPLEX_ADMIN_PASSWORD", "correct horse")
    monkeypatch.setattr(subprocess, "run", spy)
    Preflight(store, SERVED).check(put(store, CONFIG), put(store, WEIGHTS))
    assert sorted(seen[0]) == ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PATH", "PYTHONPATH"]


@pytest.mark.parametrize(
    ("trained_on", "warnings"),
    [("meta/Llama-3-8B", 1), ("acme/tiny", 0), ("./Tiny/", 0), ("", 0), ("/tmp/x/base", 0)],
)
def test_an_adapter_of_another_model_is_accepted_with_one_warning(
    store: ArtifactStore, trained_on: str, warnings: int
) -> None:
    config = json.dumps(make_config(base_model_name_or_path=trained_on)).encode()
    served = ServedBase("served", BASE, "acme/tiny")
    report = Preflight(store, served).check(put(store, config), put(store, WEIGHTS))
    assert report.passed
    assert [finding.check for finding in report.findings if finding.level == "warn"] == ["base"] * warnings
