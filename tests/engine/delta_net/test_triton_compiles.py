"""The CUDA kernels as the launcher has them compiled, for devices that are not here, with the heads of Qwen3.5."""

from pathlib import Path

import pytest

from loraplex.engine.delta_net.backend import Projections
from loraplex.engine.delta_net.cuda import CudaDeltaNet
from loraplex.engine.delta_net.kernels.cuda import launch
from loraplex.engine.delta_net.shape import StateShape
from tests.ahead_of_time import CompileOnly, compile_for, compile_only, resources
from tests.cards import CARDS

from .cases import make_batch, make_projections, make_weights

SHAPE = StateShape(num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128, conv_kernel=4)
KERNELS = ("convolve", "keep_inputs", "recur", "gated_norm")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, CompileOnly]:
    return compile_only(monkeypatch, dict.fromkeys(KERNELS, launch))


def run(lengths: list[int]) -> None:
    """A step of sequences of these lengths, with a state kept of each that has more than one token."""
    wide = make_projections(sum(lengths), SHAPE)
    parts = (wide.qkv, wide.gate, wide.beta, wide.step)
    batch = make_batch(
        [(3, length, slot % 3) for slot, length in enumerate(lengths)],
        [[(0, 1)] if length > 1 else [] for length in lengths],
    )
    net = CudaDeltaNet(SHAPE, 2, 3, "cpu")
    for layer in range(2):
        net.mix(layer, Projections(*(part.bfloat16() for part in parts)), make_weights(SHAPE), batch)


@pytest.mark.parametrize("architecture", CARDS)
def test_no_spills(architecture: int, kernels: dict[str, CompileOnly], tmp_path: Path) -> None:
    compile_for(architecture)
    run([5, 1])
    for name, kernel in kernels.items():
        for compiled in kernel.compiled:
            used = resources(compiled.asm["cubin"], tmp_path)
            assert used["STACK"] == used["LOCAL"] == 0, name
            assert used["REG"] * 32 * compiled.metadata.num_warps <= 32 * 1024, name
            assert compiled.metadata.shared <= CARDS[architecture].shared_memory // 8, name
    loads = kernels["convolve"].compiled[0].asm["ptx"].count("ld.global.v")
    assert loads >= 4, "each tap's weights come in vectors"


def test_the_sizes_of_a_step_compile_nothing_anew(kernels: dict[str, CompileOnly]) -> None:
    compile_for(90)
    for lengths in ([5, 1], [1], [2] * 16, [1] * 33, [7, 1, 16]):
        run(lengths)
    different = {name: len({id(compiled) for compiled in kernel.compiled}) for name, kernel in kernels.items()}
    assert different == {"convolve": 1, "keep_inputs": 1, "recur": 1, "gated_norm": 1}
