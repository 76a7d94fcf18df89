"""Every part of `benchmarks.gpu` with tiny tensors on the CPU, in triton's interpreter and with a clock that tells
made-up times: test_gpu.py runs this by itself."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import attention, delta, experts, kinds, linears, lora, packed_peers, paged, small
from benchmarks.gpu.__main__ import run
from benchmarks.gpu.card import describe
from benchmarks.gpu.catalog import QUICK_SECONDS, parts
from benchmarks.gpu.figure import Figure
from benchmarks.gpu.size import FULL
from loraplex.engine.attention.backend import CacheShape
from loraplex.engine.attention.cuda import CudaAttention
from loraplex.engine.attention.kernels.cuda.tiles import count_spare, is_uneven
from loraplex.engine.batch import Batch
from loraplex.engine.delta_net.cuda import CudaDeltaNet
from loraplex.engine.model.experts import device_linears
from loraplex.quant.linears.cuda_experts import CudaExperts
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.cuda_scaled_float8 import CudaScaledFloat8Linear
from tests.cards import CARDS
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
    chosen = {name: figures for name, figures in parts(TINY).items() if name not in ("engine", "families", "mixtures")}
    status, rows = run_parts(tmp_path / "gpu.json", chosen)
    assert status == 0, rows
    assert [row["what"] for row in rows] == [figure.what for figures in chosen.values() for figure in figures]
    missing = {row["what"]: row["note"] for row in rows if row["value"] is None}
    absent = {"flash-linear-attention": "delta rule", "gemlite": "gemlite"}
    for what, note in missing.items():
        [whose] = [words for peer, words in absent.items() if note.startswith(f"{peer} cannot be imported")]
        assert whose in what, missing


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


OWN = "torch's _weight_int4pack_mm"


def of_linears(start: str) -> list[Figure]:
    return [figure for figure in linears.figures(TINY) if figure.what.startswith(start)]


def halve(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The same with all numbers halved: a single one may weigh little in what experts give together."""
    return lambda *given, **named: function(*given, **named) * 0.5


def halve_output(function: Callable[..., None]) -> Callable[..., None]:
    """As `halve`, of a function that writes to its first argument."""

    def halved(y: torch.Tensor, *given: Any, **named: Any) -> None:
        function(y, *given, **named)
        y *= 0.5

    return halved


SPOILED: dict[str, tuple[Any, str, Callable[[Any], Any], Callable[[], list[Figure]]]] = {
    "attention": (CudaAttention, "attend", spoil, lambda: attention.figures(TINY)[2:3]),
    "one long context": (CudaAttention, "attend", spoil, lambda: attention.figures(TINY)[1:2]),
    "soft cap": (CudaAttention, "attend", spoil, lambda: kinds.figures(TINY)[:1]),
    "sinks": (CudaAttention, "attend", spoil, lambda: kinds.figures(TINY)[7:8]),
    "rope": (CudaAttention, "rotate_and_write", spoil, lambda: kinds.figures(TINY)[-1:]),
    "delta net": (CudaDeltaNet, "mix", spoil, lambda: delta.figures(TINY)[:1]),
    "delta net, prompts": (CudaDeltaNet, "mix", spoil, lambda: delta.figures(TINY)[1:2]),
    "lora": (lora, "add_lora", spoil_output, lambda: lora.figures(TINY)[:1]),
    "four bits": (CudaPackedLinear, "apply", spoil, lambda: linears.figures(TINY)[:1]),
    "float8": (CudaScaledFloat8Linear, "apply_cast", spoil, lambda: of_linears("FP8 down")),
    "a cast": (linears, "multiply_made", spoil, lambda: of_linears("FP8 qkv")),
    "beside a peer": (CudaPackedLinear, "apply", spoil, lambda: of_linears(f"W4A16 gate_up, 3 rows: speed / {OWN}")),
    "products of experts": (CudaExperts, "apply", halve, lambda: experts.figures(TINY)[:1]),
    "adapters on experts": (device_linears, "add_lora", halve_output, lambda: experts.figures(TINY)[-1:]),
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


def their_helper(off: int) -> Any:
    """In place of gemlite.helper: what it documents of its weights, codes less zeros times scales, in plain numbers."""

    class A16Wn:
        def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
            self.device, self.dtype = device, dtype

        def from_weights(
            self, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, W_nbits: int, group_size: int
        ) -> torch.nn.Module:
            assert codes.dtype == torch.uint8 and W_nbits == 4
            groups = codes.view(len(codes), -1, group_size).float() + off
            dense = (groups - zeros.float()[..., None]) * scales[..., None]
            linear = torch.nn.Linear(codes.shape[1], len(codes), bias=False)
            linear.weight.data = dense.view(codes.shape).to(self.device, self.dtype)
            return linear.requires_grad_(False)

    return SimpleNamespace(A16Wn=A16Wn)


@pytest.mark.parametrize("off", [0, 1])
def test_a_peer_that_is_at_hand_is_measured_if_it_is_right(
    off: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(packed_peers, "import_module", {"gemlite.helper": their_helper(off)}.__getitem__)
    status, rows = run_parts(tmp_path / "gpu.json", {"card": of_linears("W4A16 qkv, 3 rows: speed / gemlite")})
    assert status == 0 and len(rows) == 1
    assert (rows[0]["value"] is None) == bool(off)
    assert rows[0]["note"].startswith("gemlite gives something else: off by" if off else "")


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
    blocks = torch.arange(sequences * length // paged.BLOCK, dtype=torch.int32).view(sequences, -1)
    batch = attention.one_long(paged.step(tiny_stage(), blocks, 1, length), length, FULL.long)
    lengths = batch.context_lengths
    assert lengths[0] == FULL.long and lengths.max() > 8 * lengths[1:].max()
    assert is_uneven(int(lengths.max()), int(lengths.sum()), FULL.kv_heads, CARDS[90])
    whole, shared = (count_spare(sequences, FULL.kv_heads, FULL.long, uneven, CARDS[90]) for uneven in (False, True))
    assert whole == 0 < shared
    short = batch.block_tables[1:, : int(lengths[1]) // paged.BLOCK]
    assert len({*batch.block_tables[0].tolist(), *short.flatten().tolist()}) == int(lengths.sum()) // paged.BLOCK


@pytest.mark.parametrize(
    ("number", "change"),
    [(0, {"soft_cap": None}), (3, {"soft_cap": 50.0}), (4, {"sinks": False}), (9, {"scale": 1.0})], ids=str,
)  # fmt: skip
def test_attention_of_another_kind_has_no_speed(
    number: int, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A kernel that knows less of the layer than the figure does."""
    begin = CudaAttention.__init__

    def begin_changed(self: CudaAttention, shape: CacheShape, *given: Any, **named: Any) -> None:
        others = tuple(replace(layer, **change) for layer in shape.layers)
        begin(self, replace(shape, layers=others), *given, **named)
        self.layers = shape.layers

    attend = CudaAttention.attend

    def attend_without(
        self: CudaAttention, layer: int, query: torch.Tensor, batch: Batch, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        known, self.layers = self.layers, tuple(replace(layer, **change) for layer in self.layers)
        result = attend(self, layer, query, batch, sinks if self.layers[layer].sinks else None)
        self.layers = known
        return result

    monkeypatch.setattr(CudaAttention, "__init__", begin_changed)
    monkeypatch.setattr(CudaAttention, "attend", attend_without)
    status, rows = run_parts(tmp_path / "gpu.json", {"card": kinds.figures(TINY)[number : number + 1]})
    assert status == 1 and rows[0]["note"].startswith("WRONG RESULT: "), rows


def test_a_state_that_is_left_wrong_has_no_speed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mix = CudaDeltaNet.mix

    def forget(self: CudaDeltaNet, layer: int, *given: Any) -> torch.Tensor:
        result = mix(self, layer, *given)
        self._recurrent[layer] *= 0.9
        return result

    monkeypatch.setattr(CudaDeltaNet, "mix", forget)
    for figure in delta.figures(TINY)[:2]:
        status, rows = run_parts(tmp_path / "gpu.json", {"card": [figure]})
        assert status == 1 and rows[0]["note"].startswith("WRONG RESULT: "), rows


def their_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    initial_state: torch.Tensor | None, output_final_state: bool, use_qk_l2norm_in_kernel: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """As flash-linear-attention describes its rules: [B, T, H, K], decays as logarithms, q over the root of K."""
    assert output_final_state and use_qk_l2norm_in_kernel
    q, k = (torch.nn.functional.normalize(part.float(), dim=-1) for part in (q, k))
    state = torch.zeros(len(q), q.shape[2], q.shape[3], v.shape[3]) if initial_state is None else initial_state
    outputs = []
    for token in range(q.shape[1]):
        state = state * g[:, token].exp()[..., None, None]
        known = torch.einsum("bhkv,bhk->bhv", state, k[:, token])
        change = (v[:, token].float() - known) * beta[:, token, :, None]
        state = state + k[:, token, :, :, None] * change[:, :, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, token]) * q.shape[3] ** -0.5)
    return torch.stack(outputs, 1).to(v.dtype), state


@pytest.mark.parametrize("index", [2, 3], ids=["decode", "prompts"])
def test_the_peer_is_asked_for_the_same(index: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(delta, "their_rule", lambda tokens: their_rule)
    figures = delta.figures(TINY)[index : index + 1]
    status, rows = run_parts(tmp_path / "gpu.json", {"card": figures})
    assert status == 0 and rows[0]["value"] == 0.5, rows
    monkeypatch.setattr(delta, "their_rule", lambda tokens: lambda **given: their_rule(**given | {"g": given["g"] * 9}))
    status, rows = run_parts(tmp_path / "gpu.json", {"card": figures})
    assert status == 1 and rows[0]["note"].startswith("WRONG RESULT: "), rows


def test_a_key_that_is_stored_wrong_has_no_speed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write = CudaAttention.write
    monkeypatch.setattr(
        CudaAttention, "write", lambda self, layer, key, value, batch: write(self, layer, key * 1.1, value, batch)
    )
    status, rows = run_parts(tmp_path / "gpu.json", {"card": attention.figures(TINY)[3:]})
    assert status == 1 and rows[0]["note"].startswith("WRONG RESULT: ")
