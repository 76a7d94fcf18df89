import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from numba.core.dispatcher import Dispatcher

from loraplex import LLM, SamplingParams
from loraplex.engine.config import EngineConfig
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.identity.digest import state_digest
from loraplex.engine.startup.build import build_engine, choose_step_tokens
from loraplex.engine.startup.loaded_files import LoadedFiles
from tests.checkpoints import make_adapter, make_checkpoint

HYBRID: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"], "head_dim": 128, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 48,
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), max_position_embeddings=1024)


def test_the_engine_says_what_it_chose_and_each_stage_of_its_start(base: Path) -> None:
    stages: list[tuple[str, float]] = []
    config = EngineConfig(model=str(base), kv_cache_memory=1 << 20, adapter_memory=1 << 20, num_threads=1)
    engine = build_engine(config, lambda stage, seconds: stages.append((stage, seconds)))
    info = engine.info
    engine.close()
    assert [stage for stage, _ in stages] == [
        "configuration read",
        "weights loaded",
        "memory reserved",
        "kernels compiled",
    ]
    assert info.load_seconds == pytest.approx(sum(seconds for _, seconds in stages))
    assert (info.architecture, info.dtype, info.device, info.num_threads) == ("LlamaForCausalLM", "float32", "cpu", 1)
    assert (info.vocab_size, info.max_model_len, info.max_num_batched_tokens) == (320, 1024, 512)
    assert info.num_blocks == (1 << 20) // (2 * 2 * 16 * 2 * 16 * 4) - 1
    assert info.kv_cache_bytes <= 1 << 20
    assert info.compute.startswith("cpu, 1 thread, float32 weights")
    assert info.model == base.name
    assert LoadedFiles(info.base_files, info.kv_cache_files) == LoadedFiles(state_digest(base), "float32")


def generate_and_list_compiled(base: str, adapter: str) -> list[str]:
    """Names of the functions that numba compiled, or fetched from its cache, after the engine said it was ready."""
    names: list[str] = []
    params = [
        SamplingParams(temperature=0.0, max_tokens=3),
        SamplingParams(temperature=0.8, top_p=0.9, top_k=7, max_tokens=3, n=2, seed=1, logprobs=3, prompt_logprobs=1),
        SamplingParams(temperature=0.0, repetition_penalty=1.2, logit_bias={5: 2.0}, max_tokens=3, min_tokens=2),
    ]
    compile_one = Dispatcher.compile

    def recording(dispatcher: Any, signature: Any) -> Any:
        names.append(dispatcher.py_func.__name__)
        return compile_one(dispatcher, signature)

    with LLM(base, {"mine": adapter}, num_kv_blocks=128, adapter_memory=4 << 20, num_threads=1) as llm:
        Dispatcher.compile = recording
        for _ in range(2):
            llm.generate(["a", "hello " * 20, "The quick"], params, adapter=["mine", None, "mine"], use_tqdm=False)
        llm.generate([[5] * 900, [6] * 30], params[:2], adapter=["mine", None], use_tqdm=False)
    return names


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_nothing_compiles_inside_a_request(base: Path, tmp_path: Path, family: str) -> None:
    """Of layers of one kind, and of recurrent ones between those that attend."""
    if family != "llama":
        base = make_checkpoint(tmp_path / "base", family, max_position_embeddings=1024, **HYBRID)
    adapter = make_adapter(tmp_path, base, rank=16, kinds="all-linear")
    call = f"generate_and_list_compiled({str(base)!r}, {str(adapter)!r})"
    code = f"from tests.engine.startup.test_build import generate_and_list_compiled; print({call})"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("given", "sequences", "kind", "tokens"),
    [(0, 64, "cpu", 512), (0, 64, "cuda", 2048), (0, 600, "cpu", 600), (0, 4096, "cuda", 4096), (96, 64, "cuda", 96)],
)
def test_a_step_has_more_tokens_on_a_gpu_where_nothing_is_said(
    given: int, sequences: int, kind: str, tokens: int, tmp_path: Path
) -> None:
    config = EngineConfig(model="none", max_num_batched_tokens=given, max_num_seqs=sequences)
    model = ModelConfig.from_folder(make_checkpoint(tmp_path))
    known = SimpleNamespace(device=torch.device(kind))
    assert choose_step_tokens(config, known, model) == tokens  # type: ignore[arg-type]
