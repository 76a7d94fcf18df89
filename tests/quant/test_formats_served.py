"""AutoAWQ checkpoints as they are served: codes of 4 bits in each of the CPU's kernels and the decoder as one compiled
call, against transformers on the float32 weights that the codes stand for."""

from pathlib import Path

import pytest
import torch

from loraplex.engine.attention.backend import CacheShape
from loraplex.engine.attention.cpu import CpuAttention
from loraplex.engine.batch import Batch
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.decoder import Decoder
from loraplex.engine.startup.kv_cache_size import attention_layers
from loraplex.quant.kernels.instructions.dots import HAS_BFLOAT16, HAS_INTEGERS
from loraplex.quant.linears import coded
from loraplex.quant.linears.code_kernels import INTEGERS, SPLIT_DOTS, VECTORS, CodeKernel
from loraplex.quant.linears.coded import CodedLinear
from tests.quant.made_checkpoints import Case, layers, make_quantized
from tests.quant.made_formats import awq
from tests.quant.test_formats_engine import IDS, TOLERANCE, error, expected, load

SIZES = {"hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 8, "num_key_value_heads": 2}
KERNELS = [VECTORS, *([SPLIT_DOTS] if HAS_BFLOAT16 else []), *([INTEGERS] if HAS_INTEGERS else [])]
"""Those that keep 16 bits of each activation."""
CALLS = [
    pytest.param(group, zeros, kernel, id=f"groups of {group}{'' if zeros else ', no zero points'}, {kernel.name}")
    for group, zeros in ((32, True), (64, True), (128, True), (128, False), (-1, True))
    for kernel in KERNELS
    if group == -1 or group % kernel.step == 0
]


@pytest.mark.parametrize("group,zeros,kernel", CALLS)
def test_logits_of_a_prompt_and_of_tokens_after_it(
    group: int, zeros: bool, kernel: CodeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": zeros, "version": "gemm"}
    case = Case(said, layers(awq(group, zeros)), settings=SIZES)
    quantized, floats = make_quantized(tmp_path, case)
    monkeypatch.setattr(coded, "choose_kernel", lambda *form: kernel)
    decoder = load(quantized)
    for layer in decoder.layers:
        for linear in layer.linears():
            assert isinstance(linear.method, CodedLinear) and linear.method.packed().facts["kernel"] == kernel.name
    assert error(served(quantized, decoder), expected(floats)) < TOLERANCE


@torch.inference_mode()
def served(folder: Path, decoder: Decoder) -> torch.Tensor:
    """A prompt of all but the last three tokens, then these one by one."""
    config = ModelConfig.from_folder(folder)
    layers = attention_layers(config)
    shape = CacheShape(layers=layers, num_blocks=4, block_size=16, cache_dtype=torch.float32)
    cache, blocks = CpuAttention(shape), torch.arange(4, dtype=torch.int32)[None]
    decoder.fuse(cache)
    assert decoder.fused is not None
    found, ends = [], [len(IDS) - 3, len(IDS) - 2, len(IDS) - 1, len(IDS)]
    for first, last in zip([0, *ends], ends, strict=False):
        places, starts = torch.arange(first, last), torch.tensor([0, last - first], dtype=torch.int32)
        length = torch.tensor([last], dtype=torch.int32)
        batch = Batch(IDS[first:last], places, places, starts, length, blocks, torch.arange(last - first))
        found.append(decoder.forward(batch, cache).clone())
    return torch.cat(found)
