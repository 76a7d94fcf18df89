"""Every part of `benchmarks.gpu` with tiny tensors on the CPU, in triton's interpreter and with a clock that tells
made-up times: test_gpu.py runs this by itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import attention, linears, lora, small
from benchmarks.gpu.__main__ import run
from benchmarks.gpu.card import describe
from benchmarks.gpu.catalog import QUICK_SECONDS, parts
from benchmarks.gpu.figure import Figure
from benchmarks.gpu.size import FULL
from loraplex.engine.attention.cuda import CudaAttention
from loraplex.engine.attention.kernels.cuda.tiles import count_spare, is_uneven
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.cuda_scaled_float8 import CudaScaledFloat8Linear
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .tiny import TINY, beside, tiny_stage

__all__ = ["one_patch_a_module", "poisoned_memory", "rounding"]


def run_parts(path: Path, chosen: dict[str, list[Figure]]) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and the rows of the file."""
    stage = tiny_stage()
    status = run(beside(stage), chosen, dict.fromkeys(QUICK_SECONDS, 1e9), path, describe(stage.device))
    return status, json.loads(path.read_text())["rows"]


def test_every_row_is_measured_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(linears, "DENSE_ROWS", 3)
    chosen = {name: figures for name, figures in parts(TINY).items() if name != "engine"}
    status, rows = run_parts(tmp_path / "gpu.json", chosen)
    assert status == 0, rows
    assert [row["what"] for row in rows] == [figure.what for figures in chosen.values() for figure in figures]
    assert all(row["value"] > 0 for row in rows), [row for row in rows if row["value"] is None]


def spoil(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The same with its largest number halved."""

    def spoiled(*given: Any, **named: Any) -> torch.Tensor:
        result = function(*given, **named)
        flat = result.view(-1)
        flat[flat.abs().argmax()] *= 0.5
        return result

    return spoiled


def spoil_output(function: Callable[..., None]) -> Callable[..., None]:
    """The same, of a function that writes to its first argument."""

    def spoiled(y: torch.Tensor, *given: Any, **named: Any) -> None:
        function(y, *given, **named)
        spoil(torch.Tensor.view_as)(y, y)

    return spoiled


SPOILED: dict[str, tuple[Any, str, Callable[[Any], Any], Callable[[], list[Figure]]]] = {
    "attention": (CudaAttention, "attend", spoil, lambda: attention.figures(TINY)[2:3]),
    "one long context": (CudaAttention, "attend", spoil, lambda: attention.figures(TINY)[1:2]),
    "lora": (lora, "add_lora", spoil_output, lambda: lora.figures(TINY)[:1]),
    "four bits": (CudaPackedLinear, "apply", spoil, lambda: linears.figures(TINY)[:1]),
    "float8": (CudaScaledFloat8Linear, "apply_cast", spoil, lambda: linears.figures(TINY)[-1:]),
    "a cast": (linears, "multiply_made", spoil, lambda: linears.figures(TINY)[-4:-3]),
    "norm": (small, "add_rms_norm", spoil, lambda: small.figures(TINY)[:1]),
    "gate": (small, "multiply_gate", spoil, lambda: small.figures(TINY)[1:2]),
    "embedding": (small, "gather_rows", spoil, lambda: small.figures(TINY)[3:4]),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_wrong_kernel_has_no_speed(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    owner, attribute, change, figures = SPOILED[name]
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    status, rows = run_parts(tmp_path / "gpu.json", {"card": figures()})
    assert status == 1
    assert [row["value"] for row in rows] == [None] and rows[0]["note"].startswith("WRONG RESULT: "), rows


@pytest.mark.parametrize("index", [4, 5], ids=["largest", "drawn"])
def test_a_wrong_token_has_no_speed(index: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The least likely token of each row."""
    sample = small.sample

    def other(buffers: Any, *given: Any, **named: Any) -> None:
        sample(buffers, *given, **named)
        buffers.results[small.TOKEN] = buffers.logits.argmin(1)

    monkeypatch.setattr(small, "sample", other)
    status, rows = run_parts(tmp_path / "gpu.json", {"card": small.figures(TINY)[index : index + 1]})
    assert status == 1 and rows[0]["value"] is None and rows[0]["note"].startswith("WRONG RESULT: ")


def test_one_long_context_is_what_decodes_share_out() -> None:
    """At the sizes of a card's figures, and the keys that it reads are no other context's."""
    sequences, length = FULL.decode
    blocks = torch.arange(sequences * length // attention.BLOCK, dtype=torch.int32).view(sequences, -1)
    batch = attention.one_long(attention.step(tiny_stage(), blocks, 1, length), length, FULL.long)
    lengths = batch.context_lengths
    assert lengths[0] == FULL.long and lengths.max() > 8 * lengths[1:].max()
    assert is_uneven(int(lengths.max()), int(lengths.sum()), FULL.kv_heads)
    whole, shared = (count_spare(sequences, FULL.kv_heads, FULL.long, uneven) for uneven in (False, True))
    assert whole == 0 < shared
    short = batch.block_tables[1:, : int(lengths[1]) // attention.BLOCK]
    assert len({*batch.block_tables[0].tolist(), *short.flatten().tolist()}) == int(lengths.sum()) // attention.BLOCK


def test_a_key_that_is_stored_wrong_has_no_speed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write = CudaAttention.write
    monkeypatch.setattr(
        CudaAttention, "write", lambda self, layer, key, value, batch: write(self, layer, key * 1.1, value, batch)
    )
    status, rows = run_parts(tmp_path / "gpu.json", {"card": attention.figures(TINY)[3:]})
    assert status == 1 and rows[0]["note"].startswith("WRONG RESULT: ")
