"""`loraplex calibrate-kv` as it is typed, and what its file does in an engine."""

import json
import os
from pathlib import Path

import pytest

from loraplex import LLM, SamplingParams
from loraplex.engine.status import Clipping
from tests.checkpoints import make_adapter, make_checkpoint

from ...typed import Run, typed

DTYPE = ("--kv-cache-dtype", "fp8_e4m3")
TOKENS = ("--calibration-tokens", "512")
READ = 60
"""Tokens, of the 64 that a calibration sequence has here."""
TEXT = "Numbers 0 1 2 3 4 5 6 7 8 9 and words, again and again. The quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "tiny", head_dim=32)


@pytest.fixture(scope="module")
def loud(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter with which keys are several times as large."""
    return make_adapter(tmp_path_factory.mktemp("adapter") / "loud", model, rank=4, kinds=("k_proj",), alpha=80)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path) -> Run:
    """Call the command in this process: exit code, standard output, standard error."""
    for name in [name for name in os.environ if name.startswith("LORAPLEX_")]:
        monkeypatch.delenv(name)
    settings = {"DATA_DIR": tmp_path / "data", "MODEL": model, "SERVED_NAME": "tiny", "MIN_FREE_BYTES": 0}
    for name, value in (settings | {"NUM_THREADS": 1, "ADAPTER_MEMORY": 4 << 20}).items():
        monkeypatch.setenv(f"LORAPLEX_{name}", str(value))

    return typed(monkeypatch, capsys)


def clippings(model: Path, loud: Path, data: Path) -> tuple[Clipping | None, Clipping | None]:
    """Of the base and of the adapter, when both read the beginning of the text."""
    file = str(data / "kv_scales.safetensors")
    with LLM(
        model, {"loud": loud}, kv_cache_dtype="fp8_e4m3", kv_cache_memory=1 << 20, adapter_memory=4 << 20,
        num_threads=1, kv_cache_scales="static", kv_scales_file=file,
    ) as llm:  # fmt: skip
        beginning = llm.tokenizer.encode(TEXT)[:READ]
        llm.generate([beginning] * 2, SamplingParams(max_tokens=1), adapter=[None, "loud"], use_tqdm=False)
        status = llm.status()
        return status.base_clipping, status.adapters[0].clipping


def test_scales_of_all_adapters_clip_nothing(run: Run, model: Path, loud: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 9)
    arguments = ("calibrate-kv", *DTYPE, *TOKENS, "--calibration", text)
    code, out, err = run(*arguments, "--json")
    base_only = json.loads(out)
    assert code == 0 and base_only["readers"] == ["tiny"] and "100%" not in out
    base, adapter = clippings(model, loud, tmp_path / "data")
    assert base is not None and base.tokens == READ and base.clipped_values == 0
    assert adapter is not None and adapter.clipped_tokens > READ / 2

    assert run("adapters", "add", "loud", loud)[0] == 0
    code, out, err = run(*arguments, "--json")
    both = json.loads(out)
    assert code == 0 and both["readers"] == ["tiny", "loud"] and "sequences" in err
    heads = [head for layer in both["layers"] for head in layer["keys"]]
    before = [head["scale"] for layer in base_only["layers"] for head in layer["keys"]]
    assert len(heads) == 2 * 2 and {head["set_by"] for head in heads} == {"loud"}
    assert all(head["scale"] > 2 * scale for head, scale in zip(heads, before, strict=True))
    assert both["layers"][0]["values"] == base_only["layers"][0]["values"], "the first layer's values are the base's"
    base, adapter = clippings(model, loud, tmp_path / "data")
    assert base is not None and adapter is not None
    assert (base.clipped_values, adapter.clipped_values) == (0, 0) and adapter.tokens == READ


def test_a_table_names_who_set_the_scales(run: Run, loud: Path) -> None:
    assert run("adapters", "add", "loud", loud)[0] == 0
    assert run("adapters", "add", "quiet", loud)[0] == 0
    code, out, _ = run("calibrate-kv", *DTYPE, "--calibration-tokens", "256")
    assert code == 0 and "largest scale of keys" in out and "loud" in out
    assert "read by the base and 1 adapter" in out, "the same bytes under two names are read once"
    assert "kv_scales.safetensors" in out.replace("\n", "")


def test_scales_need_a_cache_of_8_bits_and_text(run: Run, tmp_path: Path) -> None:
    code, _, err = run("calibrate-kv")
    assert code == 2 and "--kv-cache-dtype fp8_e4m3, fp8_e5m2, int8" in err
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    code, _, err = run("calibrate-kv", *DTYPE, "--calibration", short)
    assert code == 2 and "at least 128 are needed" in err
    code, _, err = run("calibrate-kv", *DTYPE, "--max-model-len", "2")
    assert code == 2 and "max_model_len 2 leaves 1 tokens of text; 2 are needed; give more" in err
    assert not (tmp_path / "data" / "kv_scales.safetensors").exists()
