"""After the warm-up no step asks triton for a kernel that it has not compiled: the launches of the whole engine for a
device that is not here, without compiling or running any."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from loraplex.engine.attention.cuda import CudaAttention
from loraplex.engine.delta_net.cuda import CudaDeltaNet
from loraplex.engine.device import cuda_stream
from loraplex.engine.device.device import choose_device
from loraplex.engine.device.stream import Launch
from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.runner.cuda_runner import CudaRunner
from loraplex.engine.startup import cuda_warmup
from loraplex.engine.startup.build import make_loader
from loraplex.engine.startup.cuda_build import build_cuda_runner
from loraplex.engine.startup.gpu_memory import plan_graphs
from loraplex.engine.startup.kv_cache_size import state_layers
from loraplex.lora.residency.pool import AdapterPool
from tests.ahead_of_time import AbsentDevice
from tests.cards import CARDS, use_card
from tests.checkpoints import make_checkpoint

from .attention.shapes import alike
from .cuda_double import pretend_cuda
from .cuda_engine import TINY, small_config
from .inline_stream import HostMoment, InlineStream

HYBRID: dict[str, Any] = {
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "num_hidden_layers": 2,
}
WARM_UP = cuda_warmup.warm_up_cuda
LENGTH, TOKENS = 96, 80
CPU = torch.device("cpu")


class Launched:
    """A graph of which only the launches count."""

    def __init__(self, launch: Launch) -> None:
        launch()

    def replay(self) -> None:
        """They were asked for."""


CARD = 80 * 10**9


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """Kernels, each as it was to be compiled."""
    found: set[Any] = set()
    pretend_cuda(monkeypatch)
    monkeypatch.setattr(driver, "_active", AbsentDevice(90))
    # A device of its own: kernels that other tests have compiled for this architecture would be launched.
    monkeypatch.setattr(AbsentDevice, "get_current_device", lambda device: -1)
    use_card(monkeypatch, CARDS[90])
    monkeypatch.setattr(JITFunction, "_do_compile", lambda kernel, key, *rest: found.add((kernel.__name__, key)))
    return found


def open_runner(
    folder: Path, sequences: int, kv_dtype: torch.dtype, static: bool, quantization: str
) -> tuple[CudaRunner, Any]:
    config = small_config(
        folder, quantization=quantization, dtype="bfloat16", max_num_seqs=sequences, max_num_batched_tokens=TOKENS,
        max_model_len=LENGTH,
    )  # fmt: skip
    model, base = ModelConfig.from_folder(folder), base_signature(folder)
    decoder = make_loader(model, Checkpoint(folder), choose_device(config, model)).load(LENGTH)
    pool = AdapterPool(base, memory=1 << 16, slots=3, dtype=torch.bfloat16, device=CPU)
    heads = model.attention
    scales = torch.ones(2, 2, heads.num_kv_heads) if static else None
    shape = alike(
        (heads.num_heads, heads.num_kv_heads), heads.head_dim, [None, 16], num_blocks=2, cache_dtype=kv_dtype,
        static_scales=scales,
    )  # fmt: skip
    cache = CudaAttention(shape, max_tokens=TOKENS, device=CPU)
    queues = cuda_stream.Queues(InlineStream(), InlineStream(), Launched, HostMoment)
    runner = build_cuda_runner(config, decoder, cache, pool, queues, LENGTH, plan_graphs(config, 2, CARD))
    runner.sampler._buffers.results.zero_()  # of which a step's end is read
    return runner, config


def random_steps(source: random.Random, most: int) -> Iterator[cuda_warmup.Step]:
    """Decodes, and prompts of any lengths among decodes."""
    for _ in range(60):
        tokens, sequences = source.randint(1, TOKENS), source.randint(1, most)
        counts = [1] * sequences
        if source.random() < 0.7 and tokens > sequences:
            ends = sorted(source.sample(range(1, tokens), sequences - 1))
            counts = [end - begin for begin, end in zip([0, *ends], [*ends, tokens], strict=True)]
        params = source.choice((cuda_warmup.GREEDY, cuda_warmup.DRAWN, cuda_warmup.DESCRIBED))
        yield counts, params, source.random() < 0.7


@pytest.mark.parametrize(
    ("sequences", "kv_dtype", "static", "quantization"),
    [(7, torch.bfloat16, False, "int4"), (8, torch.int8, False, "none"), (8, torch.float8_e4m3fn, True, "fp8")],
    ids=str,
)
def test_no_step_compiles_what_the_warm_up_has_not(
    sequences: int, kv_dtype: torch.dtype, static: bool, quantization: str, asked: set[Any], tmp_path: Path
) -> None:
    """With adapters that bring norms, ends and vectors and without, an odd vocabulary, heads with norms, a window."""
    sizes = TINY | {"num_hidden_layers": 2, "vocab_size": 327}
    folder = make_checkpoint(tmp_path, "qwen3", dtype=torch.bfloat16, **sizes)
    runner, config = open_runner(folder, sequences, kv_dtype, static, quantization)
    WARM_UP(runner, config, LENGTH)
    warmed, source = set(asked), random.Random(0)
    assert len(warmed) > 30
    assert {name for name, key in asked if "enable_fp_fusion" not in key} == set(), "releases have other defaults"
    cuda_warmup._run(runner, config, random_steps(source, sequences))
    for own_logits in (False, True):
        extras = cuda_warmup._changing(runner.adapters.table, 327, own_logits)
        runner.adapters.table.extras[0] = extras
        cuda_warmup._run(runner, config, random_steps(source, sequences))
    assert {name for name, _ in asked - warmed} == set()


def test_recurrent_layers_compile_nothing_that_the_warm_up_has_not(asked: set[Any], tmp_path: Path) -> None:
    """With states that are kept on the way and without; their copies are torch's."""
    sizes = TINY | HYBRID | {"vocab_size": 327}
    folder = make_checkpoint(tmp_path, "qwen3_5", dtype=torch.bfloat16, **sizes)
    config = small_config(folder, dtype="bfloat16", max_num_seqs=7, max_num_batched_tokens=TOKENS, max_model_len=LENGTH)
    model, base = ModelConfig.from_folder(folder), base_signature(folder)
    decoder = make_loader(model, Checkpoint(folder), choose_device(config, model)).load(LENGTH)
    states = CudaDeltaNet(state_layers(model)[0], 1, 2, CPU)
    decoder.attach_states(states)
    heads = model.attention
    shape = alike(
        (heads.num_heads, heads.num_kv_heads),
        heads.head_dim,
        [None],
        num_blocks=2,
        cache_dtype=torch.bfloat16,
        number=1,
    )
    pool = AdapterPool(base, memory=1 << 16, slots=3, dtype=torch.bfloat16, device=CPU)
    queues = cuda_stream.Queues(InlineStream(), InlineStream(), Launched, HostMoment)
    cache = CudaAttention(shape, max_tokens=TOKENS, device=CPU)
    runner = build_cuda_runner(config, decoder, cache, pool, queues, LENGTH, plan_graphs(config, 2, CARD), states)
    runner.sampler._buffers.results.zero_()
    WARM_UP(runner, config, LENGTH)
    warmed = set(asked)
    assert {"convolve", "keep_inputs", "recur", "gated_norm"} <= {name for name, _ in warmed}
    cuda_warmup._run(runner, config, random_steps(random.Random(0), 7))
    assert {name for name, _ in asked - warmed} == set()
