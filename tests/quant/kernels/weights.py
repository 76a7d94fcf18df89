"""Random quantized weights, for the tests of the CUDA schemes and for their benchmark."""

import math

import torch

from loraplex.quant.weights.weights import Float4Weight, Float8Weight, IntegerWeight


def random_integers(
    outputs: int, inputs: int, bits: int, groups: int, *, symmetric: bool = False, ordered: bool = True, seed: int = 0
) -> IntegerWeight:
    """Weights of size 1 / sqrt(inputs); every code occurs as a value, and as a zero point unless symmetric."""
    generator = torch.Generator().manual_seed(seed)
    codes, middle = 1 << bits, 1 << bits - 1
    values = torch.randint(codes, (outputs, inputs), generator=generator, dtype=torch.uint8)
    scales = (torch.rand(outputs, groups, generator=generator) + 0.5) / (middle * inputs**0.5)
    zeros = torch.full((outputs, groups), middle, dtype=torch.uint8)
    if not symmetric:
        zeros = torch.randint(codes, (outputs, groups), generator=generator, dtype=torch.uint8)
    group_of = None
    if not ordered:
        group_of = (torch.randperm(inputs, generator=generator) // (inputs // groups)).to(torch.int32)
    return IntegerWeight(bits=bits, values=values, scales=scales, zeros=zeros, group_of=group_of)


def random_float8(outputs: int, inputs: int, block: tuple[int, int], seed: int = 0) -> Float8Weight:
    """All finite bit patterns, subnormal ones and both zeros among them."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(256, (outputs, inputs), generator=generator, dtype=torch.uint8)
    bits = torch.where(bits & 0x7F == 0x7F, 0, bits)
    blocks = [-(-size // step) for size, step in zip((outputs, inputs), block, strict=True)]
    scales = (torch.rand(*blocks, generator=generator) + 0.5) / (128 * inputs**0.5)
    return Float8Weight(values=bits.view(torch.float8_e4m3fn), scales=scales, block=block)


def random_float4(outputs: int, inputs: int, seed: int = 0) -> Float4Weight:
    """Weights of size 1 / sqrt(inputs)."""
    generator = torch.Generator().manual_seed(seed)
    halves = torch.randint(256, (outputs, inputs // 2), generator=generator, dtype=torch.uint8)
    usual = 125 - round(math.log2(inputs) / 2)
    exponents = torch.randint(usual - 1, usual + 2, (outputs, inputs // 32), generator=generator, dtype=torch.uint8)
    return Float4Weight(halves=halves, exponents=exponents)
