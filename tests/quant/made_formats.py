"""Linears in each quantized format, written without the readers: integers at random, packed word by word, and the
float weights that they stand for, computed entry by entry."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass
class Made:
    tensors: dict[str, torch.Tensor]
    """Suffix of the name -> tensor."""
    weight: torch.Tensor
    """[out, in] float32."""
    integers: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0))


Make = Callable[[np.random.Generator, int, int], Made]
"""(random numbers, outputs, inputs)"""


def words(values: np.ndarray[Any, Any], bits: int) -> torch.Tensor:
    """[rows, n] integers below 2 ** bits -> [rows, ceil(n * bits / 32)] int32, the first value lowest."""
    each = 32 // bits
    packed = np.zeros((len(values), -(-values.shape[1] // each)), np.uint32)
    for place in range(values.shape[1]):
        packed[:, place // each] |= values[:, place].astype(np.uint32) << np.uint32(bits * (place % each))
    return torch.from_numpy(packed.view(np.int32))


def floats(
    values: np.ndarray[Any, Any], zeros: np.ndarray[Any, Any], scales: np.ndarray[Any, Any], group_of: list[int]
) -> torch.Tensor:
    """values [out, in], zeros and scales [out, groups]."""
    weight = np.zeros(values.shape)
    for place, group in enumerate(group_of):
        weight[:, place] = scales[:, group] * (values[:, place].astype(np.int64) - zeros[:, group].astype(np.int64))
    return torch.from_numpy(weight).float()


def scales_for(random: np.random.Generator, outputs: int, inputs: int, groups: int, spread: float) -> Any:
    """float16 numbers with which a linear's results are about as large as its inputs."""
    return (random.uniform(0.5, 1.5, (outputs, groups)) * 1.2 / inputs**0.5 / spread).astype(np.float16)


def awq(group_size: int, zero_point: bool = True) -> Make:
    def make(random: np.random.Generator, outputs: int, inputs: int) -> Made:
        size = inputs if group_size == -1 else group_size
        values = random.integers(0, 16, (outputs, inputs))
        zeros = (
            random.integers(3, 13, (outputs, inputs // size)) if zero_point else np.full((outputs, inputs // size), 8)
        )
        scales = scales_for(random, outputs, inputs, inputs // size, 4.6)
        order = [8 * (place // 8) + AWQ_ORDER[place % 8] for place in range(outputs)]
        tensors = {"qweight": words(values.T[:, order], 4), "scales": torch.from_numpy(scales.T.copy())}
        if zero_point:
            tensors["qzeros"] = words(zeros.T[:, order], 4)
        group_of = [place // size for place in range(inputs)]
        return Made(tensors, floats(values, zeros, scales, group_of), values)

    return make


def gptq(
    bits: int,
    group_size: int,
    ordered: bool = False,
    symmetric: bool = True,
    version: int = 1,
    offset: int | None = None,
) -> Make:
    """`offset`: what is taken off the zero points as they are stored, if not what the version says."""

    def make(random: np.random.Generator, outputs: int, inputs: int) -> Made:
        size = inputs if group_size == -1 else group_size
        values = random.integers(0, 1 << bits, (outputs, inputs))
        groups, middle = inputs // size, 1 << (bits - 1)
        zeros = np.full((outputs, groups), middle)
        if not symmetric:
            zeros = random.integers(middle // 2, middle + middle // 2, (outputs, groups))
        scales = scales_for(random, outputs, inputs, groups, 0.58 * middle)
        group_of = [place // size for place in range(inputs)]
        if ordered:
            group_of = random.permutation(group_of).tolist()
        stored = zeros - ((2 - version) if offset is None else offset)
        tensors = {
            "qweight": words(values, bits).T.contiguous(),
            "qzeros": words(stored.T, bits),
            "scales": torch.from_numpy(scales.T.copy()),
            "g_idx": torch.tensor(group_of, dtype=torch.int32),
        }
        return Made(tensors, floats(values, zeros, scales, group_of), values)

    return make


def compressed(
    bits: int,
    group_size: int | str,
    packed: bool = True,
    symmetric: bool = True,
    ordered: bool = False,
    packed_zeros: bool = True,
) -> Make:
    """`group_size`: or "channel" or "tensor"."""

    def make(random: np.random.Generator, outputs: int, inputs: int) -> Made:
        size = group_size if isinstance(group_size, int) else inputs
        groups, middle = inputs // size, 1 << (bits - 1)
        values = random.integers(-middle, middle, (outputs, inputs))
        shape = (1, 1) if group_size == "tensor" else (outputs, groups)
        zeros = np.zeros(shape, np.int64)
        if not symmetric:
            zeros = random.integers(-middle // 2, middle // 2, shape)
        scales = scales_for(random, *shape[:1], inputs, shape[1], 0.58 * middle)
        group_of = [place // size for place in range(inputs)]
        if ordered:
            group_of = random.permutation(group_of).tolist()
        tensors = {"weight_scale": torch.from_numpy(scales).reshape((1,) if group_size == "tensor" else shape)}
        if packed:
            tensors["weight_packed"] = words(values + middle, bits)
            tensors["weight_shape"] = torch.tensor([outputs, inputs])
        else:
            tensors["weight"] = torch.from_numpy(values).to(torch.int8)
        if ordered:
            tensors["weight_g_idx"] = torch.tensor(group_of, dtype=torch.int32)
        if not symmetric:
            flat = torch.from_numpy(zeros).to(torch.int8).reshape(tensors["weight_scale"].shape)
            both = packed and packed_zeros and group_size != "tensor"
            tensors["weight_zero_point"] = words((zeros + middle).T, bits).T.contiguous() if both else flat
        every = np.ones((outputs, 1), np.int64)
        return Made(tensors, floats(values, zeros * every, scales.astype(np.float64) * every, group_of), values)

    return make


def float8(
    block: tuple[int | None, int | None] = (None, None),
    scale_name: str = "weight_scale",
    scale_shape: tuple[int, ...] | None = None,
    static: bool = False,
    input_scale_name: str = "input_scale",
) -> Make:
    def make(random: np.random.Generator, outputs: int, inputs: int) -> Made:
        rows, columns = block[0] or outputs, block[1] or inputs
        values = torch.from_numpy(random.normal(0, 60, (outputs, inputs))).clamp(-448, 448).to(torch.float8_e4m3fn)
        shape = (-(-outputs // rows), -(-inputs // columns))
        scales = torch.from_numpy(random.uniform(0.5, 1.5, shape) * 1.2 / inputs**0.5 / 60).float()
        weight = torch.zeros(outputs, inputs)
        for row in range(outputs):
            for first in range(0, inputs, columns):
                part = slice(first, first + columns)
                weight[row, part] = values[row, part].float() * scales[row // rows, first // columns]
        tensors = {"weight": values, scale_name: scales if scale_shape is None else scales.reshape(scale_shape)}
        if static:
            tensors[input_scale_name] = torch.tensor([0.02])
        return Made(tensors, weight)

    return make
