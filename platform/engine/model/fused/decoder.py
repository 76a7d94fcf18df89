"""FusedDecoder: the compiled call as a decoder, with adapters and sampled rows."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from loraplex.lora.apply.apply import kernel_arrays
from loraplex.lora.apply.batch import LoraBatch, PageTable
from loraplex.lora.apply.vocabulary import Embedded, adapt_logits, embed
from loraplex.quant.kernels.any_linear import KERNEL

from ...attention.backend import AttentionBackend
from ...attention.cpu import CpuAttention
from ...batch import Batch
from ...delta_net.cpu import CpuDeltaNet
from ..decoder import Decoder
from ..kernels import arguments
from ..kernels.forward import forward
from ..layers import DeltaNet
from .fits import Linear, ends_fit, is_known, layer_fits
from .modules import Modules, modules_of, with_adapters
from .rooms import make_rooms
from .table import make_model

NO_STATES: Final = np.empty(0, np.int64)


@dataclass(slots=True)
class FusedDecoder:
    decoder: Decoder
    cache: CpuAttention
    model: arguments.Model
    sizes: arguments.Sizes
    linears: list[Linear]
    """One of each kernel and size, for the scratch they need."""
    modules: list[Modules]
    """Layer by layer."""
    states: CpuDeltaNet | None
    """Of the recurrent layers."""
    no_lora: arguments.Lora
    no_embeddings: Embedded
    has_ends: bool
    """Whether the compiled call also does what is before the layers and behind them."""
    rooms: arguments.Workspace | None = None

    def forward(self, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """As Decoder.forward."""
        assert cache is self.cache
        return self._whole(batch) if self.has_ends else self._layers(batch)

    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the last step, as of Decoder.compute, good until the next one."""
        assert self.rooms is not None, "no step yet"
        return torch.from_numpy(self.rooms.x), torch.from_numpy(self.rooms.residual)

    def _whole(self, batch: Batch) -> torch.Tensor:
        head, table, token_ids = self.decoder.head, self.decoder.embedding.table, batch.token_ids
        assert head is not None
        embedded = None if batch.lora is None else embed(token_ids, table, batch.lora)
        if embedded is not None:
            token_ids = token_ids.clamp(max=len(table) - 1)
        logits, rooms = self._run(batch, token_ids, embedded or self.no_embeddings, batch.sample_rows)
        hidden = torch.from_numpy(rooms.sampled_normed)
        return head.finish(adapt_logits(logits, hidden, batch.sample_rows, batch.lora))

    def _layers(self, batch: Batch) -> torch.Tensor:
        """The ends by Decoder: token 0 stands for all tokens, which have embeddings of their own."""
        x = self.decoder.begin(batch)
        tokens = torch.arange(len(x))
        self._run(batch, torch.zeros_like(tokens), Embedded(tokens, x.contiguous()), tokens[:0])
        return self.decoder.end(*self.ends(), batch)

    def _run(
        self, batch: Batch, token_ids: torch.Tensor, embedded: Embedded, rows: torch.Tensor
    ) -> tuple[torch.Tensor, arguments.Workspace]:
        """The base's logits [R, V] of the tokens `rows`, and where the step worked, good until the next one."""
        logits, rooms = torch.empty(len(rows), len(self.model.embedding)), self._rooms(len(token_ids), len(rows))
        forward(
            token_ids.numpy(),
            embedded.tokens.numpy(),
            embedded.values.numpy(),
            rows.numpy(),
            logits.numpy(),
            rooms,
            self._model(batch.lora),
            self.sizes,
            self.cache.arguments(batch),
            NO_STATES if self.states is None else self.states.fields(batch),
            self.no_lora if batch.lora is None else arguments.Lora(*kernel_arrays(batch.lora)),
        )
        return logits, rooms

    def _model(self, lora: LoraBatch | None) -> arguments.Model:
        """With the rows of the page table, once there is an adapter."""
        if lora is not None and not self.model.kinds.size:
            norm = self.decoder.norm
            last = norm.kind if self.has_ends and norm is not None else ""
            self.model = with_adapters(self.model, self.modules, lora.table, last)
        return self.model

    def _rooms(self, tokens: int, rows: int) -> arguments.Workspace:
        """Those of the last step again if it was as long."""
        if self.rooms is None or (len(self.rooms.x), len(self.rooms.sampled_x)) != (tokens, rows):
            self.rooms = make_rooms(tokens, rows, self.model, self.sizes, self.linears)
        return self.rooms


def fuse(decoder: Decoder, cache: AttentionBackend) -> FusedDecoder | None:
    """None where the layers need more than the kernels do: another scheme or device, sizes that are no whole vectors,
    an activation that `activations` lacks, experts, sinks, heads of two sizes, keys of other layers or keys that are
    values, inputs of their own or a scale of the stream."""
    is_float = decoder.embedding.dtype == torch.float32
    if not isinstance(cache, CpuAttention) or not is_float or decoder.token_inputs is not None:
        return None
    if not all(layer_fits(layer, cache) for layer in decoder.layers):
        return None
    has_ends = ends_fit(decoder)
    ends = [decoder.head.method] if has_ends and decoder.head is not None else []
    methods = [*(linear.method for layer in decoder.layers for linear in layer.linears()), *ends]
    linears = [method for method in methods if is_known(method)]
    if len(linears) < len(methods):
        return None
    hidden = decoder.layers[0].mixer.inputs.method.in_features
    states = [layer.mixer.states for layer in decoder.layers if isinstance(layer.mixer, DeltaNet)]
    modules = [modules_of(layer) for layer in decoder.layers]
    return FusedDecoder(
        decoder=decoder,
        cache=cache,
        model=make_model(decoder, modules, linears[-1] if has_ends else None),
        sizes=arguments.Sizes(hidden, cache.num_heads, cache.num_kv_heads, cache.head_dim),
        linears=list({(linear.where()[KERNEL], linear.in_features): linear for linear in linears}.values()),
        modules=modules,
        states=next((one for one in states if isinstance(one, CpuDeltaNet)), None),
        no_lora=_no_lora(decoder.embedding.table.dtype),
        no_embeddings=Embedded(torch.empty(0, dtype=torch.int64), torch.empty(0, hidden)),
        has_ends=has_ends,
    )


def _no_lora(dtype: torch.dtype) -> arguments.Lora:
    """Of the types that a batch with adapters has, so that both are one compiled function."""
    table = PageTable(
        arena=torch.empty(0, dtype=dtype),
        offset=torch.zeros(1, 1, 1, dtype=torch.int64),
        rank=torch.zeros(1, 1, 1, dtype=torch.int32),
        scaling=torch.zeros(1, 1, 1),
        shapes={},
    )
    none = torch.empty(0, dtype=torch.int32)
    scales = torch.empty(0)
    return arguments.Lora(*kernel_arrays(LoraBatch(table, none.view(0, 1), scales, none, scales, none, none, none)))
