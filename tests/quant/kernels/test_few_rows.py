"""The product of a few rows with a weight of 16 bits, without a CUDA device."""

import re
from pathlib import Path

import pytest
import torch

from loraplex.quant.kernels.cuda.dense import few_rows
from tests.ahead_of_time import compile_for, compile_only, resources
from tests.cards import CARDS
from tests.interpreted import run_interpreted
from tests.launch_order import early_reads


def test_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).with_name("few_rows_cases.py"))


@pytest.mark.parametrize("architecture", CARDS)
@pytest.mark.parametrize(("outputs", "inputs"), [(4096, 14336), (1152, 896)])
def test_no_spills_and_loads_ahead_of_their_use(
    architecture: int, outputs: int, inputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [only] = compile_only(monkeypatch, {"few_rows": few_rows}).values()
    compile_for(architecture)
    weight = torch.empty(outputs, inputs, dtype=torch.bfloat16)
    for rows in (1, 2, 8):
        x, y = torch.empty(rows, inputs, dtype=torch.bfloat16), torch.empty(rows, outputs, dtype=torch.bfloat16)
        few_rows.multiply_few_rows(y, x, weight, weight[:, 0].contiguous())
    assert len({id(kernel) for kernel in only.compiled}) == 1, "one for any number of rows"
    kernel, card, shares = (
        only.compiled[0],
        CARDS[architecture],
        few_rows.share_out(outputs, inputs, CARDS[architecture]),
    )
    used, ptx = resources(kernel.asm["cubin"], tmp_path), kernel.asm["ptx"]
    assert used["STACK"] == used["LOCAL"] == 0
    resident = min(few_rows.PROGRAMS, card.resident(few_rows.shared_bytes(shares.stages)))
    assert card.resident(kernel.metadata.shared) >= resident >= 2
    assert resident * 32 * kernel.metadata.num_warps * used["REG"] <= 64 * 1024
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global .*, (0x\w+), ", ptx)
    assert copies and {int(size, 16) for size in copies} <= {8, 16} and "cp.async.wait_group" in ptx
    # Whoever is last finds the parts of all others: their threads have stored them before one of each counts itself.
    before = ptx.split("atom.global.gpu.acq_rel.add", 1)[0]
    assert "bar.sync" in before[before.rindex("st.global") :]
    if card.can_chain:
        before = ptx.split("griddepcontrol.wait")[0]
        assert "prefetch.global.L2" in before and "ld.global" not in before and "cp.async" not in before
        assert early_reads(kernel, ("x", "parts"), tmp_path) == []
