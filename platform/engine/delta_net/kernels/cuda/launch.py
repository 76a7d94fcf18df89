"""One step of a gated delta net on CUDA: four launches, whose shapes follow from those of the step alone (triton).

Shapes as in convolve.py and recur.py. All tensors are contiguous and on one device. The kernels of
flash-linear-attention are not used: their chunks begin where a step does, so results would depend on how a prompt is
cut, and they take no slots and keep no state on the way.
"""

from typing import Final, NamedTuple

import torch
import triton

from .convolve import convolve, keep_inputs
from .recur import gated_norm, recur

CHANNELS: Final = 512
"""Of a program of the convolution."""
COLUMNS: Final = 32
"""Of a state that a program has in registers: with 128 rows 4096 numbers, 32 for each thread."""
WARPS: Final = 4


class Sequences(NamedTuple):
    """What all layers of a step share."""

    query_starts: torch.Tensor
    """[S + 1] int32"""
    positions: torch.Tensor
    """[T] int64"""
    slots: torch.Tensor
    """[S] int32"""
    kept_starts: torch.Tensor
    """[S + 1] int32"""
    kept_tokens: torch.Tensor
    """[at least as many as are kept] int32; `kept_slots` alike"""
    kept_slots: torch.Tensor


class Layer(NamedTuple):
    conv: torch.Tensor
    """[TAPS, K] float32"""
    decay: torch.Tensor
    """[H] float32"""
    dt_bias: torch.Tensor
    """[H] float32"""
    norm: torch.Tensor
    """[D] float32"""
    eps: float
    conv_state: torch.Tensor
    """[N, TAPS - 1, K] float32"""
    recurrent_state: torch.Tensor
    """[N, H, E, D] float32"""


def mix_packed(
    qkv: torch.Tensor, gate: torch.Tensor, beta: torch.Tensor, step: torch.Tensor, layer: Layer, sequences: Sequences
) -> torch.Tensor:
    """qkv [T, K], gate [T, H D], beta and step [T, H] -> [T, H D] in the dtype of gate."""
    result = torch.empty_like(gate)
    if len(qkv):
        mixed = _convolve(qkv, layer, sequences)
        values = _recur(mixed, beta, step, layer, sequences)
        heads, size = layer.recurrent_state.shape[1], layer.recurrent_state.shape[3]
        gated_norm[len(qkv), heads](
            result, values, gate, layer.norm, layer.eps,
            HEADS=heads, SIZE=size, WIDTH=triton.next_power_of_2(size), num_warps=1, enable_fp_fusion=True,
        )  # fmt: skip
    return result


def _convolve(x: torch.Tensor, layer: Layer, sequences: Sequences) -> torch.Tensor:
    """[T, K] float32. The second launch overwrites the states that the first one reads."""
    tokens, channels = x.shape
    mixed = torch.empty(tokens, channels, dtype=torch.float32, device=x.device)
    taps, blocks = len(layer.conv), triton.cdiv(channels, CHANNELS)
    count, state = len(sequences.slots), layer.conv_state
    of_step = sequences.query_starts, sequences.slots, sequences.positions
    fixed = {"CHANNELS": channels, "TAPS": taps, "BLOCK": CHANNELS, "num_warps": WARPS, "enable_fp_fusion": True}
    convolve[tokens, blocks](mixed, x, layer.conv, state, *of_step, count, **fixed)
    kept = sequences.kept_starts, sequences.kept_tokens, sequences.kept_slots
    keep_inputs[count, blocks](x, state, *of_step, *kept, **fixed)
    return mixed


def _recur(
    mixed: torch.Tensor, beta: torch.Tensor, step: torch.Tensor, layer: Layer, sequences: Sequences
) -> torch.Tensor:
    """[T, H D] float32."""
    state = layer.recurrent_state
    _, heads, key_size, size = state.shape
    key_heads = (mixed.shape[1] - heads * size) // (2 * key_size)
    values = torch.empty(len(mixed), heads * size, dtype=torch.float32, device=mixed.device)
    columns = min(COLUMNS, triton.next_power_of_2(size))
    recur[len(sequences.slots), heads, triton.cdiv(size, columns)](
        values, mixed, beta, step, layer.decay, layer.dt_bias, state,
        sequences.query_starts, sequences.slots, sequences.positions,
        sequences.kept_starts, sequences.kept_tokens, sequences.kept_slots,
        HEADS=heads, KEY_HEADS=key_heads, KEY_SIZE=key_size, SIZE=size,
        ROWS=triton.next_power_of_2(key_size), COLUMNS=columns, num_warps=WARPS, enable_fp_fusion=True,
    )  # fmt: skip
    return values
