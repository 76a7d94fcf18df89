"""How the tensors of one quantized linear are laid out: what `formats/` reads. No torch."""

from dataclasses import dataclass
from typing import Literal

Activations = Literal["as they are", "by token", "static"]
"""How a scheme's linears read their inputs: untouched, or as float8 with a scale of each token's own, or with one scale
that the checkpoint brings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwqLayout:
    """AutoAWQ's gemm: 4 bits, packed along the outputs."""

    group_size: int | None
    """Inputs of a group; None for whole rows. Likewise below."""
    has_zeros: bool
    """Whether zero points must be there; without them they are 8."""

    @property
    def words(self) -> str:
        return grouped("int4", self.group_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqLayout:
    """AutoGPTQ's and GPTQModel's: packed along the inputs."""

    bits: int
    """4 or 8."""
    group_size: int | None
    symmetric: bool
    ordered: bool
    """Whether groups follow the order of activations, so that g_idx must be there."""
    zero_offset: int
    """What zero points lack where they are stored: 1 in format gptq, 0 in gptq_v2."""

    @property
    def words(self) -> str:
        return grouped(f"int{self.bits}", self.group_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerLayout:
    """compressed-tensors' pack-quantized (in words of 32 bits) and int-quantized (a byte each)."""

    bits: int
    """4 or 8."""
    group_size: int | None
    one_scale: bool
    """One for the tensor, otherwise one for each output and group."""
    symmetric: bool
    ordered: bool
    packed: bool

    @property
    def words(self) -> str:
        return f"int{self.bits} per tensor" if self.one_scale else grouped(f"int{self.bits}", self.group_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Layout:
    """float8_e4m3fn with scales to multiply by."""

    block: tuple[int | None, int | None]
    """Outputs and inputs that share a scale; None: all of them."""
    scale_names: tuple[str, ...]
    """What the tensor of scales may be called."""
    activations: Activations = "as they are"

    @property
    def group_size(self) -> int | None:
        return self.block[1]

    @property
    def words(self) -> str:
        match self.block:
            case None, None:
                return "fp8 per tensor"
            case 1, None:
                return "fp8 per channel"
            case 1, size:
                return f"fp8 in groups of {size}"
            case rows, columns:
                return f"fp8 in blocks of {rows}x{columns}"


@dataclass(frozen=True, slots=True)
class Mxfp4Layout:
    """OCP's MXFP4: float4_e2m1 in blocks of 32 inputs, each with a power of two."""

    group_size: int = 32

    @property
    def words(self) -> str:
        return "fp4 in blocks of 32"


Layout = AwqLayout | GptqLayout | IntegerLayout | Float8Layout | Mxfp4Layout


def grouped(name: str, group_size: int | None) -> str:
    return f"{name} per channel" if group_size is None else f"{name} in groups of {group_size}"
