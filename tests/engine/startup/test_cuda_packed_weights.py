"""Packed weights of CUDA, over the CPU in its place, are kept and read as a CPU's. Floats, and float8 that is served as
the checkpoint has it, come out of the checkpoint."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from loraplex.engine.config import EngineConfig
from loraplex.engine.device.device import choose_device
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.decoder import Decoder
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.startup.build import build_engine, make_loader
from loraplex.engine.startup.cuda_build import CudaBuilder
from loraplex.engine.startup.weights_cache import LOCK, WeightsCache
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.cuda_scaled_float8 import CudaScaledFloat8Linear
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.schemes import choose
from loraplex.quant.weights.online import OnlineQuantization
from tests.checkpoints import make_checkpoint
from tests.quant.made_checkpoints import CASES, make_quantized

from ..cuda_double import pretend_cuda
from ..cuda_engine import SMALL, TINY

KEPT, READ, LOADED = "weights loaded, packed ones kept", "packed weights read", "weights loaded"
WAYS = [("int4", "int8"), ("int8", "none"), ("fp8", "none"), ("none", "int8")]


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cuda(monkeypatch)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "base", "qwen2", dtype=torch.bfloat16, num_hidden_layers=2, **TINY)


def load(base: Path, cache: Path, **settings: str) -> tuple[Decoder, str]:
    """As build_engine does, with how the weights came in."""
    config = EngineConfig(model=str(base), **(SMALL | {"dtype": "bfloat16"} | settings))
    model = ModelConfig.from_folder(base)
    device = choose_device(config, model)
    loader = make_loader(model, Checkpoint(base), device)
    return CudaBuilder(config, device).load(loader, 64, WeightsCache(cache, 1 << 30))


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.name != LOCK)


def linears(decoder: Decoder) -> Iterator[LinearMethod]:
    yield decoder.head.method
    for layer in decoder.layers:
        for linear in layer.linears():
            yield linear.method


def assert_same(decoder: Decoder, expected: Decoder) -> None:
    for found, wanted in zip(linears(decoder), linears(expected), strict=True):
        assert type(found) is type(wanted) and found.out_features == wanted.out_features
        assert torch.equal(found.columns(0, found.in_features), wanted.columns(0, found.in_features))
        assert torch.equal(found.bias(), wanted.bias())


def refuse(*arguments: object) -> None:
    raise AssertionError("it was rounded or packed again")


@pytest.mark.parametrize("linears,head", WAYS)
def test_the_second_start_packs_nothing(
    base: Path, tmp_path: Path, linears: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"quantization": linears, "head_quantization": head}
    expected, how = load(base, tmp_path / "cache", **settings)
    assert how == KEPT
    monkeypatch.setattr(CudaPackedLinear, "finish", refuse)
    monkeypatch.setattr(CudaScaledFloat8Linear, "finish", refuse)
    if linears != "none":
        monkeypatch.setattr(OnlineQuantization, "linear", refuse)
    found, how = load(base, tmp_path / "cache", **settings)
    assert how == READ
    assert_same(found, expected)
    with pytest.raises(AssertionError, match="packed again"):
        load(base, tmp_path / "another cache", **settings)


@pytest.mark.parametrize(
    "case,kept",
    [("awq", False), ("gptq", True), ("packed4-asymmetric", True), ("mixed", True), ("int8", True),
     ("fp8-blocks", True), ("float8-channels", True), ("fp8", False)],
)  # fmt: skip
def test_a_quantized_checkpoint_is_packed_once(tmp_path: Path, case: str, kept: bool) -> None:
    """But where nothing is packed: groups of 16, which are expanded to floats, and float8 that is read by float8."""
    base, _ = make_quantized(tmp_path, CASES[case])
    expected, how = load(base, tmp_path / "cache")
    assert how == (KEPT if kept else LOADED)
    assert len(entries(tmp_path / "cache")) == kept
    found, how = load(base, tmp_path / "cache")
    assert how == (READ if kept else LOADED)
    assert_same(found, expected)


def test_floats_are_not_kept(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And take no turn at writing from a process that has something to keep."""
    monkeypatch.setattr(WeightsCache, "turn", lambda *arguments, **named: pytest.fail("a turn for nothing"))
    assert [load(base, tmp_path / "cache")[1] for _ in range(2)] == [LOADED, LOADED]
    assert entries(tmp_path / "cache") == []


@pytest.mark.parametrize("damage", ["cut", "changed", "of another kind"])
def test_a_broken_file_is_replaced(base: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    cache = tmp_path / "cache"
    expected, _ = load(base, cache, quantization="int4")
    [file] = entries(cache)
    whole, middle = file.read_bytes(), file.stat().st_size // 2
    changed = whole[:middle] + bytes(byte ^ 255 for byte in whole[middle : middle + 999]) + whole[middle + 999 :]
    file.write_bytes({"cut": whole[:-1000], "changed": changed, "of another kind": b"\x93NUMPY" * 999}[damage])
    with caplog.at_level(logging.WARNING):
        found, how = load(base, cache, quantization="int4")
    assert how == KEPT and "broken, they are packed again" in caplog.text
    assert_same(found, expected)
    assert file.read_bytes() == whole
    assert load(base, cache, quantization="int4")[1] == READ


def test_each_kind_of_device_has_a_file_of_its_own(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that multiplies float8, one that does not, a CPU."""
    cache = tmp_path / "cache"
    assert [load(base, cache, quantization="fp8")[1] for _ in range(2)] == [KEPT, READ]
    monkeypatch.setattr(choose, "multiplies_rows", lambda device: False)
    assert [load(base, cache, quantization="fp8")[1] for _ in range(2)] == [KEPT, READ]
    stages: list[str] = []
    config = EngineConfig(model=str(base), weights_cache=str(cache), quantization="fp8", **(SMALL | {"device": "cpu"}))
    build_engine(config, lambda stage, seconds: stages.append(stage)).close()
    assert KEPT in stages and len(entries(cache)) == 3


def test_the_start_says_where_the_weights_came_from(base: Path, tmp_path: Path) -> None:
    config = EngineConfig(
        model=str(base), weights_cache=str(tmp_path / "cache"), quantization="int4", **(SMALL | {"dtype": "bfloat16"})
    )
    for how in (KEPT, READ):
        stages: list[str] = []
        build_engine(config, lambda stage, seconds, stages=stages: stages.append(stage)).close()
        assert [stage for stage in stages if stage.startswith(("weights", "packed"))] == [how]
