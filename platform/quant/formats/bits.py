"""Small integers out of words of 32 bits, the lowest bits first."""

import torch


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, n] int32 -> [rows, n * 32 / bits] uint8; `bits` is 4 or 8. The machine is little-endian, as files are."""
    packed = words.flatten().view(torch.uint8).view(len(words), -1)
    return packed if bits == 8 else torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)


def unsigned(values: torch.Tensor, bits: int) -> torch.Tensor:
    """int8 of `bits` bits, moved up by 2 ** (bits - 1) into uint8."""
    return (values.to(torch.int16) + (1 << (bits - 1))).to(torch.uint8)
