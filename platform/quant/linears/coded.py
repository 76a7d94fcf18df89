"""Weights kept as codes of 4 or 8 bits with scales and zero points, arithmetic in fp32: the CPU scheme of quantized
checkpoints. Activations are not quantized. A row's result is the same bits whatever other rows are in x.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from ..kernels.instructions.tile import PANEL
from ..kernels.layouts.codes import by_panel
from ..kernels.layouts.expand import FLOAT4, FLOAT8, FLOAT8_SCALE, INT4, INT8
from ..kernels.layouts.panels import pack_in_blocks
from ..weights.parts import check_shapes, joined_rows
from ..weights.weights import (
    FLOAT4_BIAS,
    FLOAT4_BLOCK,
    CodedWeight,
    Float4Weight,
    Float8Weight,
    IntegerWeight,
    float4_values,
)
from .code_kernels import KERNELS, VECTORS, CodeKernel, choose_kernel
from .packed import PackedLinear
from .scheme import LinearMethod

ARRAYS = ("codes", "scales", "zeros")


@dataclass(frozen=True, slots=True)
class CodedForm:
    """What linears must have in common to be one group: the kind of code, the inputs of a group, their order."""

    kind: int
    group: int
    order: bytes


def coded_form(weight: CodedWeight) -> CodedForm | None:
    """None for groups that the kernels do not take."""
    inputs = weight.shape[1]
    if isinstance(weight, Float8Weight):
        kind, group, order = FLOAT8, min(weight.block[1], inputs), b""
    elif isinstance(weight, Float4Weight):
        kind, group, order = FLOAT4, FLOAT4_BLOCK, b""
    else:
        kind, group = INT4 if weight.bits == 4 else INT8, -(-inputs // weight.scales.shape[1])
        order = b"" if weight.group_of is None else weight.group_of.numpy().tobytes()
    return CodedForm(kind, group, order) if choose_kernel(kind, group, inputs) else None


class CodedLinear:
    inner: tuple[LinearMethod, ...] = ()

    def __init__(self, in_features: int, out_features: tuple[int, ...], exact: bool = True) -> None:
        """`exact`: 16 bits of each activation count, else bfloat16's 8 may do."""
        self.in_features = in_features
        self.out_features = out_features
        self._rows = sum(out_features)
        self._parts: dict[int, CodedWeight] = {}
        self._bias = torch.zeros(-(-self._rows // PANEL) * PANEL)
        self._exact = exact
        self._form = CodedForm(INT8, in_features, b"")
        self._kernel = VECTORS
        self._codes = self._zeros = np.empty(0, np.uint8)
        self._scales: np.ndarray = np.empty(0, np.float32)
        """fp32, or exponents of FLOAT4."""
        self._order: torch.Tensor | None = None
        """Of the inputs as stored: those of a group side by side."""
        self._workers = torch.get_num_threads()

    def load(self, part: int, weight: CodedWeight, bias: torch.Tensor | None) -> None:
        """ValueError for another shape than announced."""
        check_shapes(part, (self.out_features[part], self.in_features), weight.shape, bias)
        if bias is not None:
            first = sum(self.out_features[:part])
            self._bias[first : first + len(bias)] = bias
        self._parts[part] = weight

    def finish(self, kernel: CodeKernel | None = None) -> None:
        """`kernel`: None takes the fastest here."""
        parts = [self._parts[part] for part in range(len(self.out_features))]
        forms = {coded_form(part) for part in parts}
        form = forms.pop()
        assert form is not None and not forms, "parts that are not of one form"
        self._take_form(form)
        chosen = kernel or choose_kernel(form.kind, form.group, self.in_features, self._exact)
        assert chosen is not None
        self._kernel = chosen
        self._codes = pack_in_blocks(self._rows, lambda first, last: self._pack(parts, first, last))
        self._scales = by_panel(torch.cat([_scales(part) for part in parts]).numpy())
        self._zeros = by_panel(torch.cat([_zeros(part) for part in parts]).numpy())
        del self._parts

    def packed(self) -> PackedLinear:
        form, arrays = self._form, {name: torch.from_numpy(getattr(self, f"_{name}")) for name in ARRAYS}
        arrays["bias"] = self._bias
        if form.order:
            arrays["order"] = torch.frombuffer(bytearray(form.order), dtype=torch.int32)
        facts: dict[str, str | int] = {"kind": form.kind, "group": form.group, "kernel": self._kernel.name}
        return PackedLinear(type(self).__name__, self.in_features, self.out_features, facts, arrays)

    @classmethod
    def restored(cls, packed: PackedLinear, inner: tuple[Any, ...]) -> Self:
        method, arrays, facts = cls(packed.in_features, packed.out_features), packed.arrays, packed.facts
        for name in ARRAYS:
            setattr(method, f"_{name}", arrays[name].numpy())
        method._bias, method._kernel = arrays["bias"], KERNELS[str(facts["kernel"])]
        order = arrays["order"].numpy().tobytes() if "order" in arrays else b""
        method._take_form(CodedForm(int(facts["kind"]), int(facts["group"]), order))
        del method._parts
        return method

    def _take_form(self, form: CodedForm) -> None:
        self._form = form
        if form.order:
            group_of = torch.frombuffer(bytearray(form.order), dtype=torch.int32)
            self._order = group_of.argsort(stable=True)

    def _pack(self, parts: Sequence[CodedWeight], first: int, last: int) -> np.ndarray:
        values = joined_rows([_codes(part) for part in parts], first, last)
        ordered = values if self._order is None else values[:, self._order]
        return self._kernel.pack(ordered.numpy(), self._form.kind)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.float32 and x.shape[1] == self.in_features
        x = x.contiguous() if self._order is None else x[:, self._order]
        y = torch.empty(len(x), self._rows)
        if not len(x):
            return y
        scratch = torch.empty(self.scratch_bytes(len(x)), dtype=torch.uint8)
        codes, scales, zeros = self._addresses()
        self._kernel.multiply(
            self._form.kind,
            codes,
            scales,
            zeros,
            self._bias.data_ptr(),
            x.data_ptr(),
            0,
            scratch.data_ptr(),
            y.data_ptr(),
            len(x),
            self._rows,
            self.in_features,
            self._group_steps,
            self._workers,
        )
        return y

    @property
    def fits_any_linear(self) -> bool:
        """Whether any_linear takes it: with x as it is."""
        return self._order is None

    def where(self) -> list[int]:
        """As any_linear takes it."""
        codes, scales, zeros = self._addresses()
        kind, group = self._form.kind, self._group_steps
        return [codes, self._bias.data_ptr(), self._kernel.address(), scales, zeros, kind, group, 0]

    def _addresses(self) -> list[int]:
        return [array.ctypes.data for array in (self._codes, self._scales, self._zeros)]

    @property
    def _group_steps(self) -> int:
        return -(-self._form.group // self._kernel.step)

    def scratch_bytes(self, rows: int) -> int:
        """That any_linear needs for so many rows."""
        return self._kernel.scratch_bytes(rows, self.in_features, self._workers)

    def columns(self, first: int, last: int) -> torch.Tensor:
        if self._order is None:
            return self._stored_columns(first, last)
        places = self._order.argsort()[first:last].tolist()
        return torch.cat([self._stored_columns(at - at % 2, at + 1)[at % 2 :] for at in places])

    def bias(self) -> torch.Tensor:
        return self._bias[: self._rows]

    def weight_bytes(self) -> int:
        return self._codes.nbytes + self._scales.nbytes + self._zeros.nbytes + self._bias.nbytes

    def _stored_columns(self, first: int, last: int) -> torch.Tensor:
        codes = torch.from_numpy(self._kernel.unpack(self._codes, self._form.kind, self._rows, first, last))
        panels, group_of = -(-self._rows // PANEL), torch.arange(first, last) // self._form.group
        scales, zeros = (
            torch.from_numpy(values.reshape(panels, -1, PANEL)).transpose(0, 1).reshape(-1, panels * PANEL)
            for values in (self._scales, self._zeros)
        )
        if self._form.kind == FLOAT4:
            return torch.ldexp(float4_values(codes), scales[group_of, : self._rows].int() - FLOAT4_BIAS)
        if self._form.kind == FLOAT8:
            return codes.view(torch.float8_e4m3fn).float() * (scales[group_of, : self._rows] / FLOAT8_SCALE)
        return (codes.float() - zeros[group_of, : self._rows].float()) * scales[group_of, : self._rows]


def _codes(weight: CodedWeight) -> torch.Tensor:
    return weight.codes() if isinstance(weight, Float4Weight) else weight.values.view(torch.uint8)


def _scales(weight: CodedWeight) -> torch.Tensor:
    """[out, groups] as the kernels multiply by them."""
    if isinstance(weight, Float4Weight):
        return weight.exponents
    if isinstance(weight, IntegerWeight):
        return weight.scales.float()
    return weight.scales.repeat_interleave(weight.block[0], dim=0)[: weight.shape[0]] * FLOAT8_SCALE


def _zeros(weight: CodedWeight) -> torch.Tensor:
    if isinstance(weight, IntegerWeight):
        return weight.zeros
    groups = 1 if isinstance(weight, Float4Weight) else weight.scales.shape[1]  # whose are not read
    return torch.zeros(weight.shape[0], groups, dtype=torch.uint8)
