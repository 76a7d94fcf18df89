"""LayerAttention: how one layer of a model attends. Without torch, for descriptions of models."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAttention:
    number: int | None = None
    """Of the layer in its model, by which adapters know it; None: its place among the layers that attend."""
    num_heads: int
    """Of the query."""
    num_kv_heads: int
    head_dim: int
    scale: float
    """Of scores."""
    window: int | None = None
    """How many of the latest tokens a token sees, itself among them; None: all."""
    is_causal: bool = True
    """False: a token sees those behind it too, as many as before it, and nothing is stored for later steps."""
    soft_cap: float | None = None
    """Scores become soft_cap * tanh(score / soft_cap), before those that no token may see are left out."""
    sinks: bool = False
    """Whether each head has a learned logit that takes part in the sum of the softmax; `attend` takes them."""
    keys_of: int | None = None
    """Of the layers that attend, the number of an earlier one whose keys and values this one reads; it writes none."""

    def __post_init__(self) -> None:
        assert self.num_heads % self.num_kv_heads == 0
        assert self.window is None or self.window > 0

    @property
    def has_keys(self) -> bool:
        """Keys and values of its own."""
        return self.keys_of is None

    @property
    def geometry(self) -> tuple[int, int, int]:
        """Layers of one geometry can share tensors and kernels."""
        return self.num_heads, self.num_kv_heads, self.head_dim

    @property
    def numbers_per_token(self) -> int:
        """Of keys and values that the layer itself stores."""
        return 2 * self.num_kv_heads * self.head_dim if self.has_keys and self.is_causal else 0


def owner(layers: Sequence[LayerAttention], layer: int) -> int:
    """The layer whose keys and values `layer` reads: itself, or that of its `keys_of`."""
    shared = layers[layer].keys_of
    return layer if shared is None else shared


def check_sharing(layers: Sequence[LayerAttention]) -> None:
    """Layers read keys of earlier layers that have their own, of the same geometry."""
    for number, layer in enumerate(layers):
        if layer.keys_of is not None:
            source = layers[layer.keys_of]
            assert layer.keys_of < number and source.keys_of is None and source.geometry == layer.geometry
