"""The sampling kernels as the launcher has them compiled, for devices that are not here: no spills, wide loads."""

from pathlib import Path

import pytest
import torch

from loraplex.engine.kernels.cuda.sampling import launch
from loraplex.engine.kernels.cuda.sampling.layout import make_buffers, make_shape
from tests.ahead_of_time import CompileOnly, compile_for, compile_only
from tests.cards import CARDS

from .test_triton_compiles import check_resources

VOCABULARY = 151936
"""Of Qwen2.5."""
NAMES = ("survey", "weigh", "narrow", "gather", "decide", "rank", "merge")
READ_ROWS = {"survey", "weigh", "gather", "rank"}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, CompileOnly]:
    return compile_only(monkeypatch, dict.fromkeys(NAMES, launch))


def run(architecture: int, rows: int, vocabulary: int, dtype: torch.dtype) -> None:
    compile_for(architecture)
    shape = make_shape(8, VOCABULARY, 20)
    buffers = make_buffers(shape, 1, torch.device("cpu"))
    logits = torch.empty(rows, VOCABULARY, dtype=dtype)[:, :vocabulary]
    launch.sample(launch.with_logits(buffers, logits, shape), shape, draws=True, logprobs=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("architecture", CARDS)
def test_no_spills_loads_of_16_bytes_and_one_compilation_for_all_steps(
    kernels: dict[str, CompileOnly], architecture: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    for rows, vocabulary in ((1, VOCABULARY), (8, VOCABULARY - 16), (3, 4096)):
        run(architecture, rows, vocabulary, dtype)
    for name, kernel in kernels.items():
        assert len(kernel.compiled) == 3 and len({id(compiled) for compiled in kernel.compiled}) == 1
        check_resources(kernel.compiled[0], architecture, tmp_path)
        assert name not in READ_ROWS or "ld.global.v4.b32" in kernel.compiled[0].asm["ptx"], name
