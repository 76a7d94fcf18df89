"""Packed weights are kept at the first start and read at the next: the same answers, never those of another file."""

import fcntl
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex import LLM, SamplingParams
from loraplex.engine.config import EngineConfig
from loraplex.engine.model.identity import fingerprint
from loraplex.engine.startup.build import build_engine
from loraplex.engine.startup.weights_cache import LOCK, SPARE_BYTES, WeightsCache, entry_name
from loraplex.quant.linears.coded import CodedLinear
from loraplex.quant.linears.packed import PackedLinear
from loraplex.quant.linears.stored_float import StoredFloatLinear
from loraplex.quant.storage.packed_file import PackedWriter
from loraplex.quant.weights.online import OnlineQuantization
from tests.checkpoints import make_checkpoint, reference_model

from ..disk import fill_disk

PROMPT = list(range(5, 25))
WAYS = [("none", "none"), ("int4", "int8"), ("int8", "int8"), ("fp8", "none")]
KEPT, READ, LOADED = "weights loaded, packed ones kept", "packed weights read", "weights loaded"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "base", "qwen2", dtype=torch.bfloat16)


def logprobs(base: Path, **settings: Any) -> dict[int, float]:
    with LLM(base, num_threads=1, **settings) as llm:
        [answer] = llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=1, logprobs=5), use_tqdm=False)
    return {token: found.logprob for token, found in answer.outputs[0].logprobs[0].items()}


def start(base: Path, cache: Path | str, **settings: Any) -> str:
    """How the weights came in, as the start-up says it."""
    stages: list[str] = []
    config = EngineConfig(
        model=str(base), weights_cache=str(cache), num_kv_blocks=8, adapter_memory=1 << 20, num_threads=1, **settings
    )
    build_engine(config, lambda stage, seconds: stages.append(stage)).close()
    [how] = [stage for stage in stages if "weights" in stage]
    return how


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.name != LOCK)


def test_weights_packed_for_another_arithmetic_are_not_read(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [start(base, tmp_path / "cache") for _ in range(2)] == [KEPT, READ]
    monkeypatch.setattr("loraplex.quant.storage.cpu_form.ARITHMETIC", "abacus")
    assert start(base, tmp_path / "cache") == KEPT


def test_weights_rounded_by_another_torch_are_not_read(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate of the new one is measured on what that rounds."""
    assert start(base, tmp_path / "cache") == KEPT
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert [start(base, tmp_path / "cache") for _ in range(2)] == [KEPT, READ]


@pytest.mark.parametrize("linears,head", WAYS)
def test_the_second_start_packs_nothing_and_answers_the_same(
    base: Path, tmp_path: Path, linears: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"quantization": linears, "head_quantization": head, "weights_cache": str(tmp_path / "cache")}
    first = logprobs(base, **settings)

    def refuse(*arguments: object) -> None:
        raise AssertionError("it was rounded or packed again")

    for place, name in ((CodedLinear, "finish"), (StoredFloatLinear, "finish"), (OnlineQuantization, "linear")):
        monkeypatch.setattr(place, name, refuse)
    assert logprobs(base, **settings) == first
    with pytest.raises(AssertionError, match="packed again"):
        logprobs(base, **settings | {"weights_cache": ""})


@pytest.mark.parametrize("linears", ["none", "int4", "int8", "fp8"])
def test_what_is_read_answers_as_transformers_with_the_same_weights(base: Path, tmp_path: Path, linears: str) -> None:
    start(base, tmp_path / "cache", quantization=linears)
    reference, online = reference_model(base), OnlineQuantization(linears)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "_proj.weight" in name:
                served = online.linear(parameter.to(torch.bfloat16))
                parameter.copy_(served if isinstance(served, torch.Tensor) else served.dequantized())
        expected = reference(torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)
    found = logprobs(base, quantization=linears, weights_cache=str(tmp_path / "cache"), kv_cache_dtype="auto")
    assert entries(tmp_path / "cache")
    for token, logprob in found.items():
        assert logprob == pytest.approx(expected[token].item(), abs=0.03), token


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_broken_file_is_replaced(base: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    cache, settings = tmp_path / "cache", {"quantization": "int8", "weights_cache": str(tmp_path / "cache")}
    right = logprobs(base, **settings)
    [file] = entries(cache)
    whole = file.read_bytes()
    middle = len(whole) // 2
    changed = whole[:middle] + bytes(byte ^ 255 for byte in whole[middle : middle + 999]) + whole[middle + 999 :]
    file.write_bytes({"cut": whole[:-1000], "changed": changed, "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        assert logprobs(base, **settings) == right
    assert "broken, they are packed again" in caplog.text
    assert file.read_bytes() == whole
    assert start(base, cache, quantization="int8") == READ


def test_each_way_and_each_checkpoint_has_a_file_of_its_own(base: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert start(base, cache) == KEPT
    assert start(base, cache, quantization="int8") == KEPT
    assert start(base, cache, dtype="float32") == KEPT
    assert start(base, cache) == READ
    weights = base / "model.safetensors"
    facts = weights.stat()
    os.utime(weights, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert start(base, cache) == KEPT
    (base / "config.json").write_text((base / "config.json").read_text() + "\n")
    assert start(base, cache) == KEPT
    assert len(entries(cache)) == 5


def test_a_checkpoint_that_another_was_copied_over_is_packed_anew(base: Path, tmp_path: Path) -> None:
    """By whoever keeps times, and where no sample of the fingerprint is taken."""
    assert start(base, tmp_path / "cache") == KEPT
    weights = base / "model.safetensors"
    facts, data = weights.stat(), bytearray(weights.read_bytes())
    data[-1] ^= 1
    samples = fingerprint.fingerprint_weights(base, "")
    with pytest.MonkeyPatch.context() as unsampled:
        unsampled.setattr(fingerprint, "fingerprint_weights", lambda folder, identity: samples)
        weights.write_bytes(bytes(data))
        os.utime(weights, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        assert start(base, tmp_path / "cache") == KEPT
        assert start(base, tmp_path / "cache") == READ


def test_the_longest_unused_leave_when_there_is_no_room(base: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    start(base, cache, quantization="int8")
    start(base, cache)
    [larger, smaller] = sorted(entries(cache), key=lambda path: -path.stat().st_size)
    limit = larger.stat().st_size + smaller.stat().st_size + 4096  # their indexes differ by a few letters
    os.utime(larger, (1, 1))
    assert start(base, cache, weights_cache_bytes=limit) == READ  # and is the last used one again
    os.utime(smaller, (1, 1))
    assert start(base, cache, quantization="fp8", weights_cache_bytes=limit) == KEPT
    assert larger in entries(cache) and smaller not in entries(cache)


def test_without_room_or_wish_nothing_is_kept(base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = tmp_path / "cache"
    assert start(base, cache, weights_cache_bytes=0) == LOADED
    assert not cache.exists()
    assert start(base, cache, weights_cache_bytes=1000) == LOADED
    assert entries(cache) == []
    assert "more than the disk or weights_cache_bytes has room for" in caplog.text
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"weights cache .* cannot be written"):
        start(base, tmp_path / "file")


def test_a_disk_that_fills_up_costs_only_the_copy(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add, added = PackedWriter.add, []

    def fail_later(writer: PackedWriter, name: str, packed: PackedLinear) -> None:
        added.append(name)
        if len(added) == 3:
            raise OSError(28, "No space left on device")
        add(writer, name, packed)

    right = logprobs(base, quantization="int8")
    monkeypatch.setattr(PackedWriter, "add", fail_later)
    assert logprobs(base, quantization="int8", weights_cache=str(tmp_path / "cache")) == right
    assert entries(tmp_path / "cache") == [] and len(added) == 3
    assert "No space left on device" in caplog.text


def test_one_process_writes_at_a_time(base: Path, tmp_path: Path) -> None:
    """Whoever comes meanwhile serves without keeping anything; what a dead writer left is removed."""
    cache = WeightsCache(tmp_path / "cache", 1 << 30)
    left = cache.unfinished(entry_name("packed", "left"))
    left.write_bytes(b"half")
    with cache.turn(wait=False) as mine:
        assert mine
        assert not left.exists()
        assert start(base, tmp_path / "cache") == LOADED
    assert entries(tmp_path / "cache") == []
    assert start(base, tmp_path / "cache") == KEPT


@pytest.mark.parametrize("refused", ["unlink", "rename", "utime", "flock", "room"])
def test_a_folder_that_refuses_costs_only_the_copy(
    base: Path, tmp_path: Path, refused: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    place: Any = {"utime": os, "flock": fcntl, "room": WeightsCache}.get(refused, Path)
    monkeypatch.setattr(place, {"room": "make_room"}.get(refused, refused), refuse)
    expected = KEPT if refused == "utime" else LOADED
    assert start(base, tmp_path / "cache") == expected
    assert ("not kept, every start packs them anew: [Errno 1]" in caplog.text) == (expected == LOADED)
    monkeypatch.undo()
    assert start(base, tmp_path / "cache") == (READ if expected == KEPT else KEPT)
    assert len(entries(tmp_path / "cache")) == 1


def test_an_unwritable_place_for_the_file_costs_only_the_copy(
    base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    start(base, cache)
    [file] = entries(cache)
    file.unlink()
    file.mkdir()
    assert start(base, cache) == LOADED
    assert "every start packs them anew" in caplog.text


def test_on_a_full_disk_an_obsolete_entry_makes_room(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    start(base, cache)
    [obsolete] = entries(cache)
    capacity = SPARE_BYTES + obsolete.stat().st_size + 1000
    fill_disk(monkeypatch, cache, capacity)
    assert start(base, cache, quantization="int8") == KEPT
    assert obsolete not in entries(cache)
    assert start(base, cache, quantization="int8") == READ
