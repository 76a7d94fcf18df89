"""`loraplex doctor`: what is well, what is not, and what to do about it."""

import json
import re
import shutil
import socket
import sqlite3
import sysconfig
from pathlib import Path

import httpx
import pytest

from loraplex.engine.device import device
from loraplex.engine.startup import gpu_profile
from loraplex.engine.startup.weights_cache import entry_name
from loraplex.registry.database.migrate import head
from loraplex.web.cli.serve.machine_checks import check_memory, check_triton
from loraplex.web.cli.serve.service_checks import check_model, check_port, check_static
from loraplex.web.settings.settings import Settings

from ....checkpoints import make_checkpoint
from ....engine.cuda_double import pretend_cuda
from ....engine.paper_gauge import PaperGauge
from ...test_cli import run
from ...typed import Run

__all__ = ["run"]


def test_doctor_says_what_is_well_and_what_is_not(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setenv("LORAPLEX_PORT", str(other.getsockname()[1]))
        code, out, _ = run("doctor")
        told = json.loads(run("doctor", "--json")[1])
    assert ["is in use by another program" in one["what"] for one in told if one["level"] == "fail"] == [True]
    assert code == 1
    assert "compute: " in out and "torch " in out and "model at " in out
    assert [line for line in out.splitlines() if line.startswith("fail")] == [
        line for line in out.splitlines() if "is in use by another program" in line
    ]
    code, out, _ = run("doctor")
    assert code == 0 and "fail" not in out
    monkeypatch.setenv("LORAPLEX_MODEL", str(tmp_path / "nowhere"))
    code, out, _ = run("doctor")
    assert code == 1 and "nowhere" in out


def test_doctor_tells_of_the_weights_cache(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data" / "weights"
    assert f"weights cache {folder} will be created at the first start, for at most 34.36 GB" in run("doctor")[1]
    folder.mkdir(parents=True)
    folder.joinpath(entry_name("packed", "one")).write_bytes(bytes(3 << 20))
    folder.joinpath("notes.txt").touch()
    assert f"weights cache {folder}: 1 kept, 3.1 MB of 34.36 GB" in run("doctor")[1]
    monkeypatch.setenv("LORAPLEX_WEIGHTS_CACHE_BYTES", "0")
    code, out, _ = run("doctor")
    assert code == 0 and "weights cache: off (weights_cache_bytes is 0)" in out
    monkeypatch.setenv("LORAPLEX_QUANTIZATION", "awq")
    code, out, _ = run("doctor")
    assert code == 1 and "awq quantization needs it" in out
    monkeypatch.delenv("LORAPLEX_WEIGHTS_CACHE_BYTES")
    folder.joinpath(entry_name("packed", "one")).unlink()
    folder.joinpath("notes.txt").unlink()
    folder.rmdir()
    folder.touch()
    code, out, _ = run("doctor")
    assert code == 1 and f"weights cache {folder} cannot be written" in out


def test_doctor_tells_the_state_of_the_database(run: Run, tmp_path: Path) -> None:
    assert "will be created at the first start" in run("doctor")[1]
    assert not (tmp_path / "data").exists(), "looking changes nothing"
    run("db", "upgrade")
    assert f"its schema is current ({head()})" in run("doctor")[1]
    database = sqlite3.connect(tmp_path / "data" / "loraplex.db")
    with database:
        database.execute("UPDATE alembic_version SET version_num = 'from the future'")
    code, out, _ = run("doctor")
    assert code == 1 and "unknown schema (from the future)" in out and "install that version" in out
    with database:
        database.execute("DELETE FROM alembic_version")
    code, out, _ = run("doctor")
    assert code == 0 and "is reachable and empty" in out
    database.close()


def test_a_database_of_another_kind_is_not_migrated(run: Run, tmp_path: Path) -> None:
    """As the service `migrate` asks: with the profile but without the URL the server would keep to SQLite unseen."""
    code, _, err = run("db", "upgrade", "--only", "postgresql")
    assert code == 2 and "a sqlite database, not postgresql" in err
    assert not (tmp_path / "data").exists()
    code, out, _ = run("db", "upgrade", "--only", "sqlite", "--json")
    assert code == 0 and json.loads(out)["version"] == head()


@pytest.mark.parametrize(
    ("name", "value", "what", "remedy"),
    [
        ("DATA_DIR", "/proc/nowhere", "data folder /proc/nowhere", "--data-dir"),
        ("DATABASE_URL", "postgresql://me@127.0.0.1:9/x", "database: ", "--database-url"),
        ("KV_CACHE_MEMORY", "900TiB", "memory: ", "--kv-cache-memory"),
        ("NUM_THREADS", "9999", "num_threads is 9999", "engine's settings"),
        ("NUMBA_CACHE_DIR", "/proc/self", "kernel cache /proc/self cannot be written", "NUMBA_CACHE_DIR"),
    ],
)
def test_doctor_says_what_to_do(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, what: str, remedy: str
) -> None:
    monkeypatch.setenv(name if name.startswith("NUMBA") else f"LORAPLEX_{name}", value)
    code, out, _ = run("doctor")
    lines = out.splitlines()
    failed = [place for place, line in enumerate(lines) if line.startswith("fail")]
    assert code == 1 and failed
    assert any(what in lines[place] and remedy in lines[place + 1] for place in failed), out


def test_doctor_counts_the_states_of_recurrent_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid = make_checkpoint(tmp_path, "qwen3_5", layer_types=["linear_attention", "full_attention"])
    found = check_memory(Settings(model=str(hybrid), device="cpu", adapter_memory=0, num_state_slots=5))
    assert found.level == "ok" and ", 4 recurrent states " in found.what
    pretend_cuda(monkeypatch)
    monkeypatch.setattr(gpu_profile, "open_gauge", lambda device: PaperGauge(total=40 * 10**9))
    assert ", 128 recurrent states " in check_memory(Settings(model=str(hybrid), device="cuda")).what
    full = check_memory(Settings(model=str(hybrid), device="cuda", num_state_slots=1 << 20))
    assert full.level == "fail" and "lower num_state_slots" in (full.remedy or "")


@pytest.mark.parametrize(
    ("total", "setting", "level", "words"),
    [
        (40 * 10**9, {}, "ok", "memory of a card: "),
        (40 * 10**9, {"adapter_memory": 50 * 10**9}, "fail", "a card has too little memory .* lower adapter_memory"),
        (10**6, {}, "fail", "CUDA graphs .* lower max_num_seqs"),
    ],
)
def test_doctor_looks_at_the_memory_of_the_device_that_serves(
    total: int, setting: dict[str, int], level: str, words: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not at the host's, of which there is none."""
    pretend_cuda(monkeypatch)
    monkeypatch.setattr(gpu_profile, "open_gauge", lambda device: PaperGauge(total=total))
    monkeypatch.setattr(device, "free_memory", lambda: 0)
    found = check_memory(Settings(model=str(checkpoint), device="cuda", **setting))
    assert found.level == level and re.search(words, found.what + (found.remedy or "")), found
    assert "minus the memory of the largest step" in found.what or level == "fail"


def test_doctor_misses_the_compiler_that_triton_needs_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert check_triton().what.startswith("triton is installed, with")
    monkeypatch.delenv("CC")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(device, "find_cuda", lambda: None)
    assert check_triton().level == "ok", "no GPU, no need"
    pretend_cuda(monkeypatch)
    (tmp_path / "Python.h").unlink()
    found = check_triton()
    assert found.level == "fail" and "without a C compiler and Python's headers, which" in found.what
    assert "apt install gcc" in found.remedy


def test_doctor_knows_a_server_of_ours_from_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = Settings(port=other.getsockname()[1])
        answer = httpx.Response(200, json={"version": "9.9"})
        monkeypatch.setattr(httpx, "get", lambda *_, **__: answer)
        assert "loraplex 9.9 is serving there" in check_port(settings).what
        monkeypatch.setattr(httpx, "get", lambda *_, **__: httpx.Response(200, text="hello"))
        with pytest.raises(ValueError, match="in use by another program"):
            check_port(settings)


def test_doctor_misses_the_dashboards_libraries(tmp_path: Path) -> None:
    found = check_static(tmp_path)
    assert found.level == "fail" and "vendor/htmx.min.js" in found.what and "make serve" in found.remedy


def test_doctor_misses_weights(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "hollow", ignore=shutil.ignore_patterns("*.safetensors"))
    found = check_model(Settings(model=str(tmp_path / "hollow")))
    assert found.level == "fail" and "has no weights" in found.what
