"""Experts that a checkpoint stores in one tensor, as tensors of each expert: an expert is read when it is asked for.

Names are those of checkpoints with a tensor for each expert: mlp.experts.3.gate_proj.weight.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from loraplex.quant.formats import mxfp4

from ..description.feed_forward import ExpertsSpec, LinearSpec
from ..description.spec import ModelSpec


class Part(NamedTuple):
    """Some rows of one expert."""

    expert: int
    rows: slice
    is_transposed: bool
    shape: tuple[int, ...]


class StoredTensor(NamedTuple):
    """A tensor of a file, or a part of one."""

    file: Any
    name: str
    part: Part | None = None

    def read(self) -> torch.Tensor:
        if self.part is None:
            whole: torch.Tensor = self.file.get_tensor(self.name)
            return whole
        expert: torch.Tensor = self.file.get_slice(self.name)[self.part.expert]
        return (expert.T if self.part.is_transposed else expert)[self.part.rows].contiguous()

    def shape(self) -> tuple[int, ...]:
        return self.stored_shape() if self.part is None else self.part.shape

    def stored_shape(self) -> tuple[int, ...]:
        return tuple(self.file.get_slice(self.name).get_shape())

    def dtype(self) -> str:
        """As safetensors calls it."""
        return str(self.file.get_slice(self.name).get_dtype())


def split_stacked(spec: ModelSpec, tensors: dict[str, StoredTensor]) -> None:
    """Put the parts of stacked tensors in their place, by our names. ValueError for one of another shape than the
    description says, or beside tensors of single experts."""
    for number, layer in enumerate(spec.layers):
        if isinstance(layer.feed_forward, ExpertsSpec):
            path = f"{spec.layers_path}.{number}.{layer.feed_forward.path}"
            for stacked in _stacked(layer.feed_forward):
                name = f"{path}.{stacked.name}"
                if name in tensors:
                    _split(path, stacked, tensors, tensors.pop(name))


class _Stacked(NamedTuple):
    """A tensor that holds a tensor `suffix` of each of `linears`, one below the other or in turn, for each expert."""

    name: str
    suffix: str
    linears: tuple[LinearSpec, ...]
    num_experts: int
    row: tuple[int, ...]
    """The shape of what an output has."""
    is_transposed: bool
    is_interleaved: bool

    def shape(self) -> tuple[int, ...]:
        sizes = sum(linear.outputs for linear in self.linears), *self.row
        return self.num_experts, *(reversed(sizes) if self.is_transposed else sizes)

    def parts(self) -> Iterator[tuple[str, Part]]:
        """With their names behind the path of the experts."""
        for expert in range(self.num_experts):
            first = 0
            for linear in self.linears:
                rows = slice(first, first + linear.outputs)
                if self.is_interleaved:
                    rows = slice(self.linears.index(linear), None, len(self.linears))
                part = Part(expert, rows, self.is_transposed, (linear.outputs, *self.row))
                yield f"{expert}.{linear.path}.{self.suffix}", part
                first += linear.outputs


def _stacked(spec: ExpertsSpec) -> Iterator[_Stacked]:
    stacked, count = spec.stacked, spec.routing.num_experts
    for name, linears in ((stacked.inputs, spec.expert.inputs), (stacked.output, (spec.expert.output,))):
        is_interleaved = stacked.is_interleaved and len(linears) > 1
        inputs = linears[0].inputs
        yield _Stacked(name, "weight", linears, count, (inputs,), stacked.is_transposed, is_interleaved)
        for suffix, row in [("bias", ()), *mxfp4.rows(inputs)]:
            yield _Stacked(f"{name}_{suffix}", suffix, linears, count, row, False, is_interleaved)


def _split(path: str, stacked: _Stacked, tensors: dict[str, StoredTensor], whole: StoredTensor) -> None:
    if whole.stored_shape() != stacked.shape():
        raise ValueError(
            f"{whole.name} is {list(whole.stored_shape())}, and the model's {stacked.num_experts} experts need "
            f"{list(stacked.shape())}"
        )
    for name, part in stacked.parts():
        ours = f"{path}.{name}"
        if ours in tensors:
            raise ValueError(f"the checkpoint has {whole.name} and {tensors[ours].name}, which are the same weights")
        tensors[ours] = whole._replace(part=part)
