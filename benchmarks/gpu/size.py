"""How large the figures' tensors are: as Llama 3.1 8B has them, or tiny to see that everything works."""

from dataclasses import dataclass, replace
from typing import Final

import torch

from loraplex.engine.attention.layer import LayerAttention
from loraplex.engine.delta_net.shape import StateShape

from .models import EIGHT_BILLION, HALF_BILLION, Model
from .shapes import ARRIVALS, FAMILIES, KINDS, MIXTURE_MODELS, MIXTURES, NETS, Arrivals, Family, Mixture


@dataclass(frozen=True)
class Size:
    hidden: int = 4096
    intermediate: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 128256
    layers: int = 4
    """Of linears with adapters: enough that no cache holds them."""
    dtype: torch.dtype = torch.bfloat16
    decode: tuple[int, int] = (64, 4096)
    """Sequences and tokens of each in the cache."""
    long: int = 32768
    """Tokens of a single long sequence."""
    prefill: int = 8192
    growing: tuple[int, tuple[int, ...]] = (16, (4096, 8192, 16384, 32768))
    """Sequences and lengths over which the time of a token's attention is a slope."""
    lora_tokens: int = 64
    adapters: tuple[int, ...] = (1, 8, 64)
    rank: int = 16
    group: int = 128
    few_rows: tuple[int, ...] = (1, 16)
    dense_rows: tuple[int, ...] = (1, 8)
    many_rows: tuple[int, ...] = (512, 2048)
    float8_rows: tuple[int, ...] = (2048, 8192)
    stream_rows: int = 8192
    """Of norm, gate, cast and embedding."""
    sampled_rows: int = 64
    square: int = 8192
    """Side of the products that tell the card's rate."""
    copy_bytes: int = 1 << 30
    cold_bytes: int = 1 << 29
    """Of what calls read in turn: several times the second-level cache of any card."""
    large: Model = EIGHT_BILLION
    little: Model = HALF_BILLION
    judged: int = 48
    """Tokens of a text by which an engine is judged before it is timed; `said`: tokens it then says."""
    said: int = 16
    crowd: int = 64
    """Streams side by side."""
    busy: int = 32
    """Streams during which the device's busy share is taken."""
    context: int = 1024
    steps: int = 64
    """Decode steps that are timed."""
    requests: tuple[int, int, int] = (256, 100, 1024)
    """How many, and the shortest and longest prompt and answer."""
    contexts: tuple[int, ...] = (2048, 8192, 16384)
    """Over which the time of a whole decode step is a slope, of `growing_streams` streams."""
    growing_streams: int = 8
    arrivals: Arrivals = ARRIVALS
    """Of requests that come by themselves."""
    answers: tuple[int, int, int] = (512, 128, 2048)
    """Streams at a time, tokens of each prompt and of each answer."""
    population: tuple[int, int] = (1000, 5)
    """Adapters that are known, and those that a run beside it keeps to."""
    visits: tuple[int, int, int] = (256, 64, 64)
    """Requests to them, tokens of each prompt and answer."""
    ranks: tuple[int, ...] = (8, 16, 32, 64)
    kinds: tuple[tuple[str, LayerAttention], ...] = KINDS
    nets: tuple[tuple[str, StateShape], ...] = NETS
    net_decodes: int = 64
    """Sequences that a recurrent layer takes one token of."""
    net_prefill: tuple[int, int] = (4, 2048)
    """Prompts at a time and tokens of each."""
    families: tuple[Family, ...] = FAMILIES
    mixtures: tuple[Mixture, ...] = MIXTURES
    mixture_models: tuple[Family, ...] = MIXTURE_MODELS
    mixture_decodes: tuple[int, ...] = (1, 64)
    mixture_prompts: int = 2048
    """Tokens of a step of prompts."""
    concurrent: tuple[int, ...] = (16, 64)
    """Streams of a family's model side by side."""
    few_adapters: int = 8
    """That its streams take in turn."""

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Fused linears of a layer: outputs and inputs."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.head_dim, self.hidden),
            "o": (self.hidden, self.heads * self.head_dim),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }


FULL: Final = Size()
QUICK: Final = replace(
    FULL, contexts=(2048, 8192), answers=(512, 128, 512), arrivals=replace(FULL.arrivals, requests=160)
)
"""For `--quick`: shorter where a row's time is that of its prompts and answers."""
