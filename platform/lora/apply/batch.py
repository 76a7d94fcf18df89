"""LoraBatch: which token of a step uses which adapter slot, and the page table the kernels read.

Shapes: T tokens of the step, N adapter slots, K module kinds, L modules of a kind, P rank pages of the largest adapter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from ..files.manifest import BaseSignature

NO_SLOT: Final = -1
"""In the place of a slot: no adapter."""
RANKS_PER_PAGE: Final = 8
TOKENS_PER_PAGE: Final = 32
"""Rows of the embedding or of the head in one page; a multiple of RANKS_PER_PAGE."""


class Group(NamedTuple):
    """Kinds of linears that are one matrix product."""

    rows: tuple[int, ...]
    """Of the page table."""
    widths: tuple[int, ...]
    """Their outputs."""


@dataclass(frozen=True, slots=True)
class RowPages:
    """Rows of the embedding or of the head that an adapter brings, for the host."""

    tokens: torch.Tensor
    """[rows] int64, ascending."""
    offsets: torch.Tensor
    """[pages] int64, where in the arena each page of them begins (row_pages.py)."""


@dataclass(frozen=True, slots=True)
class Extras:
    """What the adapter of a slot changes beside adding ranks to the linears of the layers."""

    kinds: frozenset[str]
    """Not those linears. The head is among them where the vocabulary is not the base's."""
    rows: dict[str, RowPages]
    vocab_size: int
    """Tokens that the adapted model knows."""
    has_vectors: bool = False
    """Whether it has vectors over outputs of the layers' linears."""
    own_logits: bool = False
    """Whether it has rows of the head, or another vocabulary than the base's."""
    on_experts: bool = False
    """Whether it changes single experts."""


@dataclass(slots=True)
class PageTable:
    """Where each resident adapter's pages are. One static instance per pool: kernels see every load and eviction.

    The page of (slot, kind, page) starts at element `offset[slot, kind, page]` of `arena` and is laid out
    `[L, RANKS_PER_PAGE, in + out]`: for each module of the kind, layer by layer, RANKS_PER_PAGE rows of A (`[8, in]`,
    contiguous) followed by RANKS_PER_PAGE rows of B stored rank-major (`[8, out]`, contiguous). Ranks past `rank` are
    zero. Kernels take `row(kind)` and `ordinal(kind, layer)`; lora.apply itself takes kinds and layers of the base.
    """

    arena: torch.Tensor
    """[elements], 16-bit or 32-bit float: the adapters' weights."""
    offset: torch.Tensor
    """[N, K, P] int64, in elements of the arena."""
    rank: torch.Tensor
    """[N, K, L] int32, 0 where the adapter does not touch the module, or there is none."""
    scaling: torch.Tensor
    """[N, K, L] float32, alpha / r (or / sqrt r) of the module."""
    shapes: dict[str, tuple[int, int]]
    """kind -> (in_features, out_features) of the base, as of BaseSignature.shapes: in the order of the rows."""
    ordinals: dict[str, dict[int, int]] = field(default_factory=dict)
    """kind -> layer -> which of the kind's modules it has, of kinds that the first layers do not all have."""
    extras: dict[int, Extras] = field(default_factory=dict)
    """By slot; most adapters have none."""
    vectors: torch.Tensor = field(init=False)
    """[N, K] int64, where in `floats` the page `[L, 2, out]` of gains and shifts begins: y = gain * y + shift after the
    adapter's ranks. -1: none."""
    row_index: torch.Tensor = field(init=False)
    """[N, K] int64, where in the arena read as int64 stands at which element of the arena each page of rows of tokens
    begins (row_pages.py)."""
    row_counts: torch.Tensor = field(init=False)
    """[N, K] int32, how many rows of tokens there are."""
    vocabularies: torch.Tensor = field(init=False)
    """[N] int32, tokens that the adapted model knows; 0: as many as the base."""

    _rows: dict[str, int] = field(init=False)
    _groups: dict[tuple[str, ...], Group] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = {kind: row for row, kind in enumerate(self.shapes)}
        shape, device = self.offset.shape[:2], self.offset.device
        self.vectors = torch.full(shape, -1, dtype=torch.int64, device=device)
        self.row_index = torch.zeros(shape, dtype=torch.int64, device=device)
        self.row_counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self.vocabularies = torch.zeros(shape[:1], dtype=torch.int32, device=device)

    def row(self, kind: str) -> int:
        """KeyError where the base has no such module."""
        return self._rows[kind]

    def ordinal(self, kind: str, layer: int) -> int:
        """KeyError where the layer has no such module. Kinds of one group have the same one."""
        own = self.ordinals.get(kind)
        return layer if own is None else own[layer]

    def group(self, kinds: tuple[str, ...]) -> Group:
        if kinds not in self._groups:
            widths = tuple([self.shapes[kind][1] for kind in kinds])
            self._groups[kinds] = Group(tuple(map(self.row, kinds)), widths)
        return self._groups[kinds]

    @property
    def floats(self) -> torch.Tensor:
        """The arena read as float32."""
        return self.read_as(torch.float32)

    def read_as(self, dtype: torch.dtype) -> torch.Tensor:
        """The arena, as far as it has whole numbers of `dtype`, which is no narrower."""
        per_number = dtype.itemsize // self.arena.element_size()
        return self.arena[: len(self.arena) // per_number * per_number].view(dtype)


@dataclass(slots=True)
class LoraBatch:
    """Tokens grouped by adapter, made once per step and read by every linear group."""

    table: PageTable
    token_slot: torch.Tensor
    """[T, A] int32, the slots of the adapters that are summed for each token, NO_SLOT in the other places."""
    token_scale: torch.Tensor
    """[T, A] float32, the request's own factor on each adapter's scaling."""
    sorted_tokens: torch.Tensor
    """[M] int32, tokens by round, then by slot: in round a stand the tokens with an adapter in place a."""
    scales: torch.Tensor
    """[M] float32, their factors."""
    segment_starts: torch.Tensor
    """[G + 1] int32, segment g owns sorted_tokens[segment_starts[g] : segment_starts[g + 1]]."""
    segment_slots: torch.Tensor
    """[G] int32, the slot of each segment."""
    round_starts: torch.Tensor
    """[rounds + 1] int32, round a owns the segments round_starts[a] to round_starts[a + 1]: no token twice."""
    changed: frozenset[str] = frozenset()
    """Kinds of modules beside the layers' linears that an adapter of this step changes."""
    has_vectors: bool = False
    """Whether an adapter of this step has vectors over outputs of the layers' linears."""
    own_logits: bool = False
    """Whether an adapter of this step has rows of the head, or another vocabulary than the base's."""
    on_experts: bool = False
    """Whether an adapter of this step changes single experts."""
    arrays: Any = None
    """What the kernels of the device take, made on first use."""

    @staticmethod
    def build(table: PageTable, token_slot: torch.Tensor, token_scale: torch.Tensor) -> "LoraBatch | None":
        """Group the tokens, given on the host, [T, A] or [T] each; None when every token uses the base."""
        token_slot, token_scale = token_slot.view(len(token_slot), -1), token_scale.view(len(token_scale), -1)
        places = zip(token_slot.T.numpy(), token_scale.T.numpy(), strict=True)
        rounds = [found for slots, scales in places if len((found := _sort(slots, scales))[0])]
        if not rounds:
            return None
        tokens, slots, scales = (np.concatenate(parts) for parts in zip(*rounds, strict=True))
        begins, round_starts, first = list[np.ndarray](), [0], 0
        for _, own, _ in rounds:
            begins += [np.array([first]), np.flatnonzero(own[1:] != own[:-1]) + (first + 1)]
            round_starts.append(sum(map(len, begins)))
            first += len(own)
        starts = np.concatenate([*begins, [first]]).astype(np.int32)
        extras = _extras(table, slots[starts[:-1]])
        return LoraBatch(
            table,
            token_slot,
            token_scale,
            sorted_tokens=torch.from_numpy(tokens),
            scales=torch.from_numpy(scales),
            segment_starts=torch.from_numpy(starts),
            segment_slots=torch.from_numpy(slots[starts[:-1]]),
            round_starts=torch.tensor(round_starts, dtype=torch.int32),
            changed=frozenset().union(*(extra.kinds for extra in extras)),
            has_vectors=any(extra.has_vectors for extra in extras),
            own_logits=any(extra.own_logits for extra in extras),
            on_experts=any(extra.on_experts for extra in extras),
        )

    def segments(self) -> Iterator[tuple[int, slice]]:
        """(slot, its part of sorted_tokens) of each segment."""
        starts = self.segment_starts.tolist()
        for slot, bounds in zip(self.segment_slots.tolist(), pairwise(starts), strict=True):
            yield slot, slice(*bounds)

    def rounds(self) -> "list[LoraBatch]":
        """A batch of each round, in none of which a token stands twice."""
        starts = self.round_starts.tolist()
        return [self] if len(starts) == 2 else [self._round(first, last) for first, last in pairwise(starts)]

    def _round(self, first: int, last: int) -> "LoraBatch":
        begin, end = int(self.segment_starts[first]), int(self.segment_starts[last])
        return replace(
            self,
            sorted_tokens=self.sorted_tokens[begin:end],
            scales=self.scales[begin:end],
            segment_starts=self.segment_starts[first : last + 1] - begin,
            segment_slots=self.segment_slots[first:last],
            round_starts=torch.tensor([0, last - first], dtype=torch.int32),
            arrays=None,
        )


def ordinals_of(base: BaseSignature) -> dict[str, dict[int, int]]:
    """For PageTable."""
    layers = {kind: module.layers for kind, module in base.modules.items() if module.layers is not None}
    return {
        kind: {layer: ordinal for ordinal, layer in enumerate(own)}
        for kind, own in layers.items()
        if own != tuple(range(len(own)))
    }


def _extras(table: PageTable, slots: np.ndarray) -> list[Extras]:
    return [table.extras[slot] for slot in slots.tolist() if slot in table.extras] if table.extras else []


def _sort(slots: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens that have an adapter in one place, by its slot; their slots and scales."""
    order = slots.argsort(kind="stable")
    order = order[slots[order].searchsorted(0) :]
    return order.astype(np.int32), slots[order].astype(np.int32), scales[order]
