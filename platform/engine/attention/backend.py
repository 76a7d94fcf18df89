"""AttentionBackend: the small interface between the decoder and the paged KV cache. One file per device.

Shapes: T new tokens, H query heads, G KV heads, D head size, R numbers of a head that rope turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ..batch import Batch
from .layer import LayerAttention, check_sharing


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Rotary:
    """What happens to a layer's heads before attention: norms of heads, then rope on queries and keys."""

    cos: torch.Tensor | None
    """[positions, R / 2] float32; the other D - R numbers of a head stay as they are. None: no rope."""
    sin: torch.Tensor | None
    """As `cos`."""
    query_norm: torch.Tensor | None = None
    """float32, what the RMS norm multiplies by: [D] of the norm over each head, or [H * D] of the norm over all of
    them; None: no norm."""
    key_norm: torch.Tensor | None = None
    """Alike: [D] or [G * D]. Both norms or neither, unless the layer has queries alone."""
    eps: float = 1e-6
    """Of all these norms."""
    interleaved: bool = False
    """Rope turns the pairs (0, 1), (2, 3) and so on, else (0, R / 2), (1, R / 2 + 1) and so on."""
    value_norm: bool = False
    """RMS norm over each value head, which multiplies by no weight."""
    norm_kinds: tuple[str, str] = ("q_norm", "k_norm")
    """What adapters call the norms of queries and of keys; empty: the layer has none."""
    query_scale: torch.Tensor | None = None
    """[positions] float32, what queries are multiplied by after rope; None: by nothing."""

    def __post_init__(self) -> None:
        assert (self.cos is None) == (self.sin is None)

    @property
    def turned(self) -> int:
        """R."""
        return 0 if self.cos is None else 2 * self.cos.shape[1]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CacheShape:
    """Of the paged cache and of the heads that read it. A block has room in every layer that stores keys."""

    layers: tuple[LayerAttention, ...]
    """Those of the model that attend. A layer's place here is its number for the backend."""
    num_blocks: int
    block_size: int
    """Tokens of a block."""
    cache_dtype: torch.dtype
    static_scales: Sequence[torch.Tensor] | None = None
    """By layer [2, G] float32: of keys and of values in 8 bits, by which numbers are divided as they are stored. None:
    every key and value gets its own. Those of a layer that reads another's keys are not looked at."""

    def __post_init__(self) -> None:
        check_sharing(self.layers)
        assert self.static_scales is None or len(self.static_scales) == len(self.layers)

    def by_geometry(self) -> list[list[int]]:
        """The numbers of layers whose heads are alike, together."""
        groups: dict[tuple[int, int, int], list[int]] = {}
        for number, layer in enumerate(self.layers):
            groups.setdefault(layer.geometry, []).append(number)
        return list(groups.values())


class AttentionBackend(Protocol):
    """Owns the cache tensors of all layers."""

    takes_own_norms: bool
    """Whether `rotate_and_write` takes a norm's weight that a token's adapter brings in place of the base's."""

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, batch: Batch) -> None:
        """Store key and value [T, G, D] of the new tokens at batch.slot_mapping; where the scales are static, note in
        batch.clipped what they clip."""

    def rotate_and_write(self, layer: int, qkv: torch.Tensor, rotary: Rotary, batch: Batch) -> torch.Tensor:
        """qkv [T, (H + 2 G) D] of the fused linear: norm and rotate query and key, `write` key and value. Of a layer
        that reads another's keys it is [T, H D], and nothing is written.

        Returns the query [T, H, D] that `attend` takes. The same as doing each step apart, in one pass.
        """

    def attend(self, layer: int, query: torch.Tensor, batch: Batch, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """query [T, H, D], rope applied -> [T, H, D]. Causal over each sequence's cached tokens, as LayerAttention says
        for the layer. sinks [H] float32, where the layer has them."""

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks, source to destination, in every layer (copy-on-write)."""

    def cache_bytes(self) -> int:
        """Bytes of the cache tensors."""
