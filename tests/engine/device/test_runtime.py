"""What a model is computed with: told by the engine and by who asks without one, and complete."""

import os
import subprocess
import sys
from pathlib import Path

import llvmlite
import numba
import pytest
import torch
import triton

from loraplex.engine.attention.kernels.paged import TILE
from loraplex.engine.config import CPU_TILE, EngineConfig
from loraplex.engine.device.arithmetic import computing_here
from loraplex.engine.device.computing import Computing
from loraplex.engine.device.device import choose_device
from loraplex.engine.device.runtime import cpu_runtime, cuda_runtime
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.startup.build import build_engine
from tests.checkpoints import make_checkpoint

CARD = torch.device("cuda", 0)
TELL = "from loraplex.engine.device.runtime import cpu_runtime; print(cpu_runtime()['vectors'])"


def test_a_processors_is_its_libraries_and_vectors() -> None:
    found = cpu_runtime()
    vectors = found.pop("vectors")
    assert found == {"torch": torch.__version__, "numba": numba.__version__, "llvmlite": llvmlite.__version__}
    assert vectors.endswith(f" floats, {torch.backends.cpu.get_cpu_capability()} in torch")


def test_vectors_are_those_that_kernels_are_chosen_by() -> None:
    """A process that may use fewer instructions adds up in another order."""

    def told(**environment: str) -> str:
        command = [sys.executable, "-c", TELL]
        return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True).stdout

    narrow = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse2", "ATEN_CPU_CAPABILITY": "default"}
    assert told(**narrow) == "4 floats, DEFAULT in torch\n"


def test_a_cards_is_its_libraries_and_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert cuda_runtime(CARD) == {
        "torch": torch.__version__, "triton": triton.__version__, "CUDA": "12.8", "compute capability": "9.0",
    }  # fmt: skip


def test_an_engine_and_who_asks_without_one_say_the_same(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path, "llama")
    config = EngineConfig(
        model=str(base), device="cpu", num_kv_blocks=8, adapter_memory=1 << 20, adapter_host_memory=0, num_threads=1
    )
    engine = build_engine(config)
    engine.close()
    assert computing_here(config) == Computing(engine.info.arithmetic, cpu_runtime())
    assert engine.info.runtime == cpu_runtime()


def test_blocks_that_a_cpu_cannot_lay_out_are_refused_before_the_weights_are_read(tmp_path: Path) -> None:
    model = ModelConfig.from_folder(make_checkpoint(tmp_path))
    with pytest.raises(ValueError, match="block_size is 7; on a CPU it must be a multiple of 16"):
        choose_device(EngineConfig(model=str(tmp_path), device="cpu", block_size=7), model)
    assert CPU_TILE == TILE
