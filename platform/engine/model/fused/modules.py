"""The modules of layers as adapters know them. Layers with the same ones share a row of the call's arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loraplex.lora.apply.batch import PageTable

from ..kernels import arguments
from ..layers import Attention, DecoderLayer
from .fits import layer_norms


@dataclass(frozen=True, slots=True)
class Modules:
    """A layer's modules as adapters know them."""

    groups: tuple[tuple[str, ...], ...]
    """The kinds of each group of linears."""
    widths: tuple[tuple[int, ...], ...]
    norms: tuple[str, ...]
    """In the order of the kernels, without the last one; empty: there is none."""

    def all_norms(self, last: str) -> tuple[str, ...]:
        """With the kind of the last norm."""
        return *self.norms[: arguments.NORMS], last, *self.norms[arguments.NORMS :]


def modules_of(layer: DecoderLayer) -> Modules:
    linears, heads = layer.linears(), ("", "")
    if isinstance(layer.mixer, Attention) and layer.mixer.rotary.query_norm is not None:
        heads = layer.mixer.rotary.norm_kinds
    return Modules(
        groups=tuple(linear.kinds for linear in linears),
        widths=tuple(linear.method.out_features for linear in linears),
        norms=(*("" if norm is None else norm.kind for norm in layer_norms(layer)), *heads),
    )


def distinct(modules: Sequence[Modules]) -> list[Modules]:
    """Each once, in the order of the rows."""
    return list(dict.fromkeys(modules))


def with_adapters(model: arguments.Model, modules: Sequence[Modules], table: PageTable, last: str) -> arguments.Model:
    """With the rows of the page table. modules: layer by layer. last: the kind of the last norm; empty: there is none,
    or it is not the call's."""
    sets = distinct(modules)
    kinds = np.zeros((len(sets), max(sum(map(len, one.groups)) for one in sets)), np.int64)
    for row, one in zip(kinds, sets, strict=True):
        rows = [table.row(kind) for group in one.groups for kind in group]
        row[: len(rows)] = rows
    norms = [[table.row(norm) if norm else -1 for norm in one.all_norms(last)] for one in sets]
    ordinals = [_ordinals(table, layer, one) for layer, one in enumerate(modules)]
    return model._replace(kinds=kinds, norm_kinds=np.array(norms), ordinals=np.array(ordinals))


def _ordinals(table: PageTable, layer: int, modules: Modules) -> list[int]:
    """Of each group and norm; the last norm's is not asked for."""
    names = *(group[0] for group in modules.groups), *modules.all_norms("")
    return [table.ordinal(name, layer) if name else 0 for name in names]
