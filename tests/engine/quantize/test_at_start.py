"""`quantization="awq"`: the base is quantized at the first start, kept, and served as its quantized checkpoint is."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from loraplex import LLM, SamplingParams
from loraplex.engine.config import EngineConfig
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.folder import FOLDED_SCALES
from loraplex.engine.quantize.options import QuantizeOptions
from loraplex.engine.quantize.run import quantize_checkpoint
from loraplex.engine.quantize.seal import SEAL
from loraplex.engine.startup import quantize_at_start as at_start
from loraplex.engine.startup.build import build_engine
from loraplex.engine.startup.quantize_at_start import awq_checkpoint
from loraplex.engine.startup.weights_cache import LOCK, SPARE_BYTES, WeightsCache, entry_name
from tests.checkpoints import make_adapter, make_checkpoint

from ..disk import fill_disk
from .test_served import unfolded

PROMPT = list(range(5, 25))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), "qwen2")


@pytest.fixture(scope="module")
def cache(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the quantized base in it."""
    folder = tmp_path_factory.mktemp("cache")
    stages = start(base, folder)
    assert [stage for stage in stages if stage.startswith("awq: ")][:3] == [
        "awq: quantizing 2 layers, once for this base",
        "awq: 1 of 2 layers quantized",
        "awq: 2 of 2 layers quantized",
    ]
    assert any(stage.endswith("on held-out text") for stage in stages)
    return folder


def start(base: Path, cache: Path, **settings: Any) -> list[str]:
    """What the start-up said."""
    stages: list[str] = []
    sizes = {"num_kv_blocks": 8, "adapter_memory": 1 << 20, "num_threads": 1}
    config = EngineConfig(model=str(base), quantization="awq", weights_cache=str(cache), **sizes | settings)
    build_engine(config, lambda stage, seconds: stages.append(stage)).close()
    return stages


def checkpoints(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.name.startswith("awq-")]


def logprobs(base: Path, cache: Path, adapter: Path | None = None, **settings: Any) -> dict[int, float]:
    adapters = {"some": adapter} if adapter else {}
    settings = {"quantization": "awq", "weights_cache": str(cache), "num_threads": 1} | settings
    with LLM(base, adapters, **settings) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
        [answer] = llm.generate([PROMPT], params, adapter="some" if adapter else None, use_tqdm=False)
        assert llm.info.model == base.name
        assert llm.info.quantization == "awq at the first start"
    return {token: found.logprob for token, found in answer.outputs[0].logprobs[0].items()}


def test_it_is_what_the_command_writes(base: Path, cache: Path, tmp_path: Path) -> None:
    quantize_checkpoint(base, tmp_path / "out", QuantizeOptions(scheme="awq", group_size=32))
    [kept] = checkpoints(cache)
    names = sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file())
    names.remove(SEAL)
    assert names == sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*"))
    for name in names:
        assert (kept / name).read_bytes() == (tmp_path / "out" / name).read_bytes(), name


@pytest.mark.parametrize("kind", ["base", "lora", "dora"])
def test_answers_are_those_of_transformers_and_peft_in_the_float_models_coordinates(
    base: Path, cache: Path, tmp_path: Path, kind: str
) -> None:
    [kept] = checkpoints(cache)
    reference: Any = unfolded(kept)
    adapter = None if kind == "base" else make_adapter(tmp_path / "adapter", base, use_dora=kind == "dora")
    if adapter is not None:
        reference = PeftModel.from_pretrained(reference, adapter).eval()
    with torch.no_grad():
        expected = reference(torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)
    for token, logprob in logprobs(base, cache, adapter).items():
        assert logprob == pytest.approx(expected[token].item(), rel=1e-3), token


def test_the_second_start_quantizes_nothing(base: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("it was quantized again")

    monkeypatch.setattr(at_start, "quantize_checkpoint", refuse)
    stages = start(base, cache)
    assert not any(stage.startswith("awq") for stage in stages) and "packed weights read" in stages
    with pytest.raises(AssertionError, match="quantized again"):
        start(make_checkpoint(base.parent / "other", "qwen2", seed=1), cache)


def test_what_was_interrupted_is_begun_anew(base: Path, cache: Path, tmp_path: Path) -> None:
    """A folder that a killed process left is not taken for a checkpoint, and goes. What is served stays, however small
    the limit; there is no room for packed weights beside it."""
    [kept] = checkpoints(cache)
    left = tmp_path / f".{kept.name}.x1y2"
    left.mkdir()
    (left / "config.json").write_bytes((kept / "config.json").read_bytes())
    limit = 2 * sum(path.stat().st_size for path in kept.rglob("*") if path.is_file()) // 3
    assert any(stage.startswith("awq: perplexity") for stage in start(base, tmp_path, weights_cache_bytes=limit))
    assert {path.name for path in tmp_path.iterdir()} == {LOCK, kept.name}
    assert load_file(tmp_path / kept.name / "model.safetensors").keys()


@pytest.mark.parametrize("harm", ["bits", "cut", "config", "scales", "seal"])
def test_what_is_not_as_it_was_written_is_made_again(
    base: Path, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    """Never served, and no reason not to start."""
    copy = tmp_path / "cache"
    shutil.copytree(cache, copy)
    [kept] = checkpoints(copy)
    weights, scales = kept / "model.safetensors", kept / FOLDED_SCALES
    match harm:
        case "bits":
            data = bytearray(weights.read_bytes())
            data[-5000] ^= 1
            weights.write_bytes(bytes(data))
        case "cut":
            weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
        case "config":
            (kept / "config.json").unlink()
        case "scales":
            scales.write_bytes(scales.read_bytes()[:-1] + bytes([scales.read_bytes()[-1] ^ 1]))
        case "seal":
            (kept / SEAL).write_text("{")
    assert any("quantizing" in stage for stage in start(base, copy))
    assert f"{kept} is not as it was written, it is quantized again" in caplog.text
    assert logprobs(base, copy) == logprobs(base, cache)
    assert not any("quantizing" in stage for stage in start(base, copy))
    assert checkpoints(copy) == [kept]
    assert not [path for path in copy.iterdir() if path.name.startswith(".")]


def test_a_copy_of_the_cache_is_as_good(base: Path, cache: Path, tmp_path: Path) -> None:
    """Its files have other times."""
    shutil.copytree(cache, tmp_path / "cache", copy_function=shutil.copyfile)
    assert not any("quantizing" in stage for stage in start(base, tmp_path / "cache"))


def test_of_two_that_start_at_once_one_quantizes(
    base: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other waits, and takes what has been made by then."""
    [kept] = checkpoints(cache)
    monkeypatch.setattr(at_start, "quantize_checkpoint", lambda *arguments: pytest.fail("it was quantized twice"))
    first, second = (WeightsCache(tmp_path, 1 << 30) for _ in range(2))
    config = ModelConfig.from_folder(base)
    with ThreadPoolExecutor() as pool:
        with first.turn(wait=True):
            waiting = pool.submit(awq_checkpoint, base, config, second, lambda words, seconds: None)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.5)
            shutil.copytree(kept, first.path(kept.name))
        assert waiting.result(timeout=60) == tmp_path / kept.name


def test_on_a_full_disk_an_obsolete_checkpoint_makes_room(
    base: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [kept] = checkpoints(cache)
    obsolete = tmp_path / entry_name("awq", "obsolete")
    shutil.copytree(kept, obsolete)
    weights = (kept / "model.safetensors").stat().st_size
    fill_disk(monkeypatch, tmp_path, SPARE_BYTES + weights)
    assert any(stage.startswith("awq: perplexity") for stage in start(base, tmp_path))
    assert [path.name for path in checkpoints(tmp_path)] == [kept.name]


def test_the_head_may_be_quantized_too(base: Path, cache: Path, tmp_path: Path) -> None:
    stages = start(base, cache, head_quantization="int8")
    assert not any(stage.startswith("awq") for stage in stages)


def test_a_program_keeps_it_among_the_users_caches(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with LLM(base, quantization="awq", num_threads=1) as llm:
        assert "awq" in llm.info.quantization
    assert len(checkpoints(tmp_path / "loraplex" / "weights")) == 1


def test_what_is_refused(base: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give weights_cache_bytes more than 0"):
        start(base, cache, weights_cache_bytes=0)
    [kept] = checkpoints(cache)
    with pytest.raises(ValueError, match="quantized already; serve it without quantization awq"):
        start(kept, cache)
    odd = make_checkpoint(tmp_path / "odd", intermediate_size=80)
    with pytest.raises(ValueError, match=r"none of them divides the linears' 64, 80; use quantization int8"):
        start(odd, cache)
