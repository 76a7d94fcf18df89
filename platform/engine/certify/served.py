"""ServedModel: the served path itself (loader, linears, adapters, paged attention) on the device that serves.

A layer is in memory at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch

from loraplex.lora.apply.batch import LoraBatch, PageTable
from loraplex.lora.files.values import Bits
from loraplex.lora.residency.cuda_limits import why_not_on_cuda
from loraplex.lora.residency.pages import PageStore
from loraplex.lora.residency.weights import Staging, load_pages, read_contents

from ..attention.backend import AttentionBackend
from ..batch import Batch, StateSlots
from ..device.device import Device
from ..kernels.cuda.sampling.layout import MOST_TOKENS
from ..kernels.token_layout import lay_out
from ..model.base_modules import DecoderModules
from ..model.config import ModelConfig
from ..model.layers import DecoderLayer, DeltaNet
from ..model.loader import Checkpoint
from ..startup.build import make_loader
from ..startup.kv_cache_size import blocks_of, state_layers
from ..startup.loaded import cache_shape
from ..startup.static_scales import CacheScales
from .inputs import OpenedAdapter
from .placement import choose_placement
from .prompts import Prompt

BLOCK_SIZE: Final = 16
BATCH_TOKENS: Final = 2048
"""Tokens of the prompts that go through a layer together."""


class ServedModel:
    def __init__(self, folder: Path, device: Device, longest: int) -> None:
        """`longest`: positions of rotary tables. ValueError when the files do not fit their configuration."""
        self.config, self.device = ModelConfig.from_folder(folder), device
        self._checkpoint = Checkpoint(folder, self.config.spec)
        self._loader = make_loader(self.config, self._checkpoint, device)
        self._longest = longest
        self.ends = self._loader.load_ends()

    def layer(self, layer: int) -> DecoderLayer:
        return self._loader.load_layer(layer, self._longest)

    def modules(self, *layers: int) -> DecoderModules:
        """What adapters say things relative to, of these layers."""
        decoder = replace(self.ends, layers=[self.layer(layer) for layer in layers])
        return DecoderModules(decoder, self._checkpoint, self.config)


class LayerwiseModules:
    """lora.finish.BaseModules of all layers, of which the one that was asked for last is in memory."""

    def __init__(self, model: ServedModel) -> None:
        self._model, self._layer = model, 0
        self._modules = model.modules(0)

    def columns(self, layer: int, kind: str, first: int, last: int) -> torch.Tensor:
        return self._of(layer).columns(layer, kind, first, last)

    def bias(self, layer: int, kind: str) -> torch.Tensor:
        return self._of(layer).bias(layer, kind)

    def norm(self, layer: int, kind: str) -> torch.Tensor:
        return self._of(layer).norm(layer, kind)

    def stored_rows(self, kind: str) -> tuple[Bits, str]:
        return self._modules.stored_rows(kind)

    def _of(self, layer: int) -> DecoderModules:
        if layer != self._layer:
            del self._modules  # before the next one comes
            self._layer, self._modules = layer, self._model.modules(layer)
        return self._modules


def load_adapter(model: ServedModel, adapter: OpenedAdapter, dtype: torch.dtype) -> PageTable:
    """Its pages in `dtype`, in slot 0 of a table for it alone. ValueError says why it cannot be served."""
    folder, base, modules, device = adapter.folder, adapter.base, LayerwiseModules(model), model.device.device
    store = PageStore(base, 0, 1, dtype, device)
    contents = read_contents(folder, base, store.dtype_name, modules)
    refusal = why_not_on_cuda(base, MOST_TOKENS, contents) if model.device.is_cuda else None
    if refusal is not None:
        raise ValueError(refusal)
    store = PageStore(base, store.count_bytes(contents.pages), 1, dtype, device)
    room = store.reserve(contents.pages)
    assert room is not None
    store.fill(room, partial(load_pages, folder, contents, base, adapter.manifest.digest, store.dtype_name, Staging()))
    for _ in store.finish(room, contents, modules):
        pass
    store.publish(room, contents)
    return store.table


def make_batches(prompts: Sequence[Prompt], table: PageTable | None) -> list[Batch]:
    """The prompts in their order, some to a batch; logits are needed of all tokens but each one's last."""
    groups: list[list[Prompt]] = [[]]
    room = BATCH_TOKENS
    for prompt in prompts:
        if groups[-1] and len(prompt.token_ids) > room:
            groups.append([])
            room = BATCH_TOKENS
        groups[-1].append(prompt)
        room -= len(prompt.token_ids)
    return [_batch(group, table) for group in groups]


class ServedStream:
    """The prompts on their way through a served model, with keys and values in a cache of one dtype."""

    def __init__(
        self, model: ServedModel, batches: Sequence[Batch], cache_dtype: torch.dtype, scales: CacheScales
    ) -> None:
        self._ends, self._placement = model.ends, choose_placement(model.device)
        self._rows = [batch.sample_rows for batch in batches]
        self._most_tokens = max(len(batch.token_ids) for batch in batches)
        blocks = max(int(batch.block_tables.max()) + 1 for batch in batches)
        self._cache_shape = cache_shape(model.config, cache_dtype, blocks, BLOCK_SIZE, scales)
        states = state_layers(model.config)
        if states:
            batches = [replace(batch, states=_own_states(len(batch.context_lengths))) for batch in batches]
        most_sequences = max(len(batch.context_lengths) for batch in batches)
        self._recurrent = self._placement.states(states[0], most_sequences) if states else None
        """Of one layer at a time: every prompt is whole, and begins with zeros."""
        self._batches = [self._placement.place(batch) for batch in batches]
        shares = any(not attention.has_keys for attention in self._cache_shape.layers)
        self._kept = [self._cache() for _ in batches] if shares else []
        """A cache for each batch, where a layer reads the keys of another."""
        self._states = [(x := model.ends.begin(batch), torch.zeros_like(x)) for batch in self._batches]
        self._given = [model.ends.given(x, batch) for (x, _), batch in zip(self._states, self._batches, strict=True)]

    def advance(self, layer: DecoderLayer) -> None:
        """Every batch through the next layer, one after the other in its part of a cache."""
        if isinstance(layer.mixer, DeltaNet):
            layer = replace(layer, mixer=replace(layer.mixer, place=0, states=self._recurrent))
        caches = self._kept or [self._cache()] * len(self._batches)
        steps = zip(self._batches, self._states, self._given, caches, strict=True)
        for number, (batch, (x, residual), given, cache) in enumerate(steps):
            own = None if given is None else given[layer.index]
            self._states[number] = layer.apply(x, residual, batch, cache, own), residual

    def _cache(self) -> AttentionBackend:
        return self._placement.cache(self._cache_shape, self._most_tokens)

    def logits(self, most_rows: int) -> Iterator[torch.Tensor]:
        """After the last layer: [at most `most_rows`, V] float32 on the host, batch after batch."""
        for batch, all_rows, (x, residual) in zip(self._batches, self._rows, self._states, strict=True):
            for rows in torch.split(all_rows, most_rows):
                yield self._ends.end(x, residual, self._placement.sample(batch, rows)).cpu()


def _batch(prompts: Sequence[Prompt], table: PageTable | None) -> Batch:
    counts = np.array([len(prompt.token_ids) for prompt in prompts])
    tables = _block_tables(counts)
    owners, positions, slots, starts, lengths = lay_out(counts, np.zeros_like(counts), tables, BLOCK_SIZE)
    acts = positions >= np.array([prompt.start for prompt in prompts])[owners]
    token_slots = torch.from_numpy(np.where(acts, 0, -1).astype(np.int32))
    return Batch(
        token_ids=torch.tensor([token for prompt in prompts for token in prompt.token_ids]),
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(slots),
        query_starts=torch.from_numpy(starts),
        context_lengths=torch.from_numpy(lengths),
        block_tables=torch.from_numpy(tables),
        sample_rows=torch.from_numpy(np.delete(np.arange(len(positions)), starts[1:] - 1)),
        lora=None if table is None else LoraBatch.build(table, token_slots, torch.ones(len(positions))),
    )


def _own_states(sequences: int) -> StateSlots:
    """A slot for each, and no copies."""
    none = torch.empty(0, dtype=torch.int32)
    starts = torch.zeros(sequences + 1, dtype=torch.int32)
    return StateSlots(torch.arange(sequences, dtype=torch.int32), starts, none, none)


def _block_tables(counts: np.ndarray) -> np.ndarray:
    """Blocks of their own for each sequence, one after the other."""
    needed = [blocks_of(int(count), BLOCK_SIZE) for count in counts]
    tables = np.zeros((len(counts), max(needed)), np.int32)
    first = 0
    for row, blocks in zip(tables, needed, strict=True):
        row[:blocks] = np.arange(first, first := first + blocks)
    return tables
