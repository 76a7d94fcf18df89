"""How the CUDA kernels have a weight: 4- and 8-bit codes in panels of outputs and runs of inputs.

    codes [panels, runs, PANEL, bytes]   panel p, row i: output p * PANEL + i; zeros past the last output and input
        8 bits: byte j of run r is input r * run + j
        4 bits: byte j of run r holds input r * run + j low and input r * run + run / 2 + j high, so that its two halves
                are two tiles of consecutive inputs
        In runs of ORDERED_RUN inputs each TILE bytes lie in the order TILE_ORDER.
    scales, zeros [panels, groups, PANEL]  a group is a whole number of runs, or all inputs; scales of FLOAT4, which has
        one of 8 bits for each 32 inputs, are four in an int32 for each run, the first in its lowest byte

A program reads its panel from front to back without a gap. Inputs that do not lie by groups (activation order) are put
in order once, here, and x in the same order at each call.
"""

from dataclasses import dataclass
from typing import Final

import torch

from .tiles import PANEL, choose_run

INTEGER4: Final = 0
INTEGER8: Final = 1
FLOAT8: Final = 2
FLOAT4: Final = 3
"""Formats of a code; the kernels take them as numbers."""
HALF_BYTES: Final = (INTEGER4, FLOAT4)
FLOAT4_GROUP: Final = 32
FLOAT4_BIAS: Final = 127
"""What the exponent of a scale of FLOAT4 is stored above itself."""
TILE: Final = 64
ORDERED_RUN: Final = 2 * TILE
TILE_ORDER: Final = torch.arange(TILE).view(4, 2, 4, 2).permute(2, 0, 1, 3).flatten()
"""Input of each byte of a tile. The matrix units take four products of 16 inputs, whose pairs go to four threads; so
each thread's are 16 neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """A weight before it is packed: W[o, i] = scales[o, g] * (value of codes[o, i] - zeros[o, g])."""

    format: int
    values: torch.Tensor
    """[out, in] uint8: integers, float4_e2m1fn, or the bits of float8_e4m3fn, none of which may be NaN."""
    scales: torch.Tensor
    """[out, groups] float32; with FLOAT4 uint8, the exponents of powers of two."""
    zeros: torch.Tensor
    """[out, groups] uint8; [out, 1], unused, with floats."""
    group: int
    """Inputs of one group, once they are in order."""
    order: torch.Tensor | None = None
    """[in] int64: the input that comes at each place, None where they lie by groups already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    format: int
    codes: torch.Tensor
    scales: torch.Tensor
    """[panels, groups, PANEL] of the narrowest float dtype that holds them exactly; int32 with FLOAT4."""
    zeros: torch.Tensor
    """[panels, groups, PANEL] uint8, one group where all have the same."""
    outputs: int
    inputs: int
    run: int
    group_runs: int
    """Runs of one group, 0 where all inputs are one."""
    order: torch.Tensor | None

    @property
    def runs(self) -> int:
        return self.codes.shape[1]

    @property
    def is_ordered(self) -> bool:
        """Whether its codes lie in TILE_ORDER."""
        return self.run == ORDERED_RUN

    def num_bytes(self) -> int:
        order = 0 if self.order is None else self.order.nbytes
        return self.codes.nbytes + self.scales.nbytes + self.zeros.nbytes + order


FLOAT4_NUMBERS: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What each float4_e2m1fn without its sign, the highest of four bits, stands for."""
NUMBERS: Final = ("format", "outputs", "inputs", "run", "group_runs")
ARRAYS: Final = ("codes", "scales", "zeros", "order")
"""Fields of a PackedWeight; `order` alone may be None."""


def pack(weight: Codes, device: torch.device | None = None) -> PackedWeight:
    """Raises ValueError for groups no kernel takes."""
    outputs, inputs = weight.values.shape
    single = weight.scales.shape[1] == 1 and weight.format != FLOAT4
    run = ORDERED_RUN if weight.format == FLOAT4 else choose_run(None if single else weight.group)
    values = weight.values.to(device)
    if weight.order is not None:
        values = values[:, weight.order.to(device)]
    values = torch.nn.functional.pad(values, (0, -inputs % run, 0, -outputs % PANEL))
    panels = values.view(-1, PANEL, values.shape[1] // run, run).transpose(1, 2)
    if weight.format in HALF_BYTES:
        low, high = panels.chunk(2, -1)
        panels = low | high << 4
    if run == ORDERED_RUN:
        panels = panels.reshape(*panels.shape[:3], -1, TILE)[..., TILE_ORDER.to(panels.device)].flatten(-2)
    return PackedWeight(
        format=weight.format,
        codes=panels.contiguous(),
        scales=_in_panels(_by_run(weight.scales) if weight.format == FLOAT4 else _narrowest(weight.scales)).to(device),
        zeros=_in_panels(_distinct(weight.zeros)).to(device),
        outputs=outputs,
        inputs=inputs,
        run=run,
        group_runs=0 if single else max(1, weight.group // run),
        order=None if weight.order is None else weight.order.to(device),
    )


def unpack_columns(weight: PackedWeight, first: int, last: int) -> torch.Tensor:
    """[last - first, out] float32: what inputs `first` to `last` count for, exactly as stored."""
    places = torch.arange(first, last, device=weight.codes.device)
    if weight.order is not None:
        places = torch.argsort(weight.order)[first:last]
    run, byte = places // weight.run, places % weight.run
    width = weight.codes.shape[3]
    high, byte = byte // width, byte % width
    if weight.is_ordered:
        byte = byte // TILE * TILE + torch.argsort(TILE_ORDER).to(byte.device)[byte % TILE]
    codes = weight.codes[:, run, :, byte].reshape(len(places), -1)
    if weight.format == FLOAT8:
        values = codes.contiguous().view(torch.float8_e4m3fn).float()
    else:
        values = codes.float() if weight.format == INTEGER8 else (codes >> 4 * high[:, None] & 15).float()
    group = run // weight.group_runs if weight.group_runs else torch.zeros_like(run)
    if weight.format == FLOAT4:
        numbers = torch.tensor([*FLOAT4_NUMBERS, *(-number for number in FLOAT4_NUMBERS)], device=codes.device)
        stored = weight.scales.unsqueeze(-1).view(torch.uint8)[:, run, :, places % ORDERED_RUN // FLOAT4_GROUP]
        exponents = stored.reshape(len(places), -1).int() - FLOAT4_BIAS
        return torch.ldexp(numbers[values.int()], exponents)[:, : weight.outputs]
    zeros = _of_groups(weight.zeros, group if weight.zeros.shape[1] > 1 else group * 0)
    return (_of_groups(weight.scales, group) * (values - zeros))[:, : weight.outputs]


def _in_panels(rows: torch.Tensor) -> torch.Tensor:
    """[out, groups] -> [panels, groups, PANEL], zeros past the last output."""
    padded = torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % PANEL))
    return padded.view(-1, PANEL, rows.shape[1]).transpose(1, 2).contiguous()


def _by_run(exponents: torch.Tensor) -> torch.Tensor:
    """[out, groups] uint8 -> [out, runs] int32, four in each."""
    return torch.nn.functional.pad(exponents, (0, -exponents.shape[1] % 4)).contiguous().view(torch.int32)


def _of_groups(panels: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """[len(groups), out in whole panels] float32."""
    return panels[:, groups].transpose(0, 1).flatten(1).float()


def _narrowest(scales: torch.Tensor) -> torch.Tensor:
    for dtype in (torch.float16, torch.bfloat16):
        narrow = scales.to(dtype)
        if torch.equal(narrow.float(), scales):
            return narrow
    return scales


def _distinct(zeros: torch.Tensor) -> torch.Tensor:
    return zeros[:, :1] if bool((zeros == zeros[:, :1]).all()) else zeros
