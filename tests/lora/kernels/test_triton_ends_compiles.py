"""Norms and embeddings of adapters as the launchers have them compiled, for devices that are not here: no spills."""

from pathlib import Path

import pytest
import torch

from loraplex.lora.kernels.cuda import own_embedding, own_logits, own_norm
from loraplex.lora.kernels.cuda.entry import StepTensors
from loraplex.lora.kernels.cuda.own_rows import OwnRows
from tests.ahead_of_time import CompileOnly, compile_for, resources, restore_device
from tests.cards import CARDS

HIDDEN, VOCABULARY, BF16 = 4096, 128256, torch.bfloat16


@pytest.mark.parametrize("architecture", CARDS)
def test_no_spills_wide_loads_and_one_compilation_for_all_steps(
    architecture: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore_device(monkeypatch)
    norm, embed, logits = (
        CompileOnly(kernel) for kernel in (own_norm.own_norm, own_embedding.embed, own_logits.own_logits)
    )
    monkeypatch.setattr(own_norm, "own_norm", norm)
    monkeypatch.setattr(own_embedding, "embed", embed)
    monkeypatch.setattr(own_logits, "own_logits", logits)
    compile_for(architecture)
    for tokens, layer in ((1, 0), (16, 1), (7, 31)):
        x, ids = torch.empty(tokens, HIDDEN, dtype=BF16), torch.empty(tokens, dtype=torch.int64)
        slots, vectors, floats = ids.int(), torch.empty(8, 14, dtype=torch.int64), torch.empty(64)
        own_norm.norm_with_own(x, x, None, slots, floats, vectors, layer, 9, 1e-5)
        step = StepTensors(
            torch.empty(8, 3, dtype=torch.int32), slots, floats, floats, torch.empty(64, dtype=BF16),
            torch.empty(8, 14, 64, dtype=torch.int64), torch.empty(8, 14, 32, dtype=torch.int32),
            torch.empty(8, 14, 32),
        )  # fmt: skip
        own = OwnRows(vectors, vectors.int(), torch.empty(16, dtype=torch.int64), torch.empty(32, dtype=torch.int32))
        own_embedding.add_embedding(x, ids, step, own, 8, 8, VOCABULARY)
        wide = torch.empty(tokens, VOCABULARY + 4096)
        own_logits.put_own_logits(wide, x, step, own, own.tokens, 8, 7, VOCABULARY)
    for kernel in (norm, embed, logits):
        assert len(kernel.compiled) == 3 and len({id(compiled) for compiled in kernel.compiled}) == 1
        used, ptx = resources(kernel.compiled[0].asm["cubin"], tmp_path), kernel.compiled[0].asm["ptx"]
        assert used["STACK"] == used["LOCAL"] == 0 and used["REG"] <= 128
        assert any(wide in ptx for wide in ("ld.global.v4", "ld.global.v2", "cp.async.cg"))
    norm.compiled.clear()
    for first in (0, 1):
        rows = torch.empty(8, dtype=torch.int64)[first : first + 7]
        own_norm.norm_with_own(x, x, rows, slots, floats, vectors, 0, 9, 1e-5)
    assert norm.compiled[0] is norm.compiled[1], "one wherever a step's rows begin"
