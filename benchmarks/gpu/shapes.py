"""Layers and models of other families than Llama's: how their attention, their recurrent layers and they are shaped.
And how requests come by themselves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from loraplex.engine.attention.layer import LayerAttention
from loraplex.engine.delta_net.shape import StateShape

from .errors import Unsupported

SOFT_CAP: Final = 5.0
"""So low that it changes most scores. What it is costs nothing."""


def kind(
    heads: int, kv_heads: int, head_dim: int, soft_cap: float | None = None, sinks: bool = False
) -> LayerAttention:  # fmt: skip
    return LayerAttention(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5, soft_cap=soft_cap, sinks=sinks
    )  # fmt: skip


def net(value_heads: int) -> StateShape:
    return StateShape(
        num_key_heads=16, num_value_heads=value_heads, key_head_dim=128, value_head_dim=128, conv_kernel=4
    )  # fmt: skip


KINDS: Final = (
    ("soft cap, 16 heads of 256", kind(16, 8, 256, soft_cap=SOFT_CAP)),
    ("sinks, 64 heads of 64", kind(64, 8, 64, sinks=True)),
    ("24 heads of 256", kind(24, 4, 256)),
    ("32 heads of 512", kind(32, 4, 512)),
)
"""About as Gemma 2 9B, gpt-oss 20B, Qwen3.5 27B and the global layers of a large Gemma 4 have them."""
TURNED: Final = 4
"""A head's numbers over those that rope turns, where it turns a part of them."""
NETS: Final = (("Qwen3.5 0.8B", net(16)), ("Qwen3.5 27B", net(48)))


class Checkpointed(Protocol):
    """A model that can be made and served."""

    @property
    def name(self) -> str: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Of the checkpoint, about."""

    def make(self, device: torch.device, parent: Path) -> Path:
        """The folder of its checkpoint in bfloat16, made on `device` the first time."""


@dataclass(frozen=True)
class Family:
    """A model of benchmarks/family_checkpoints.py with random weights."""

    name: str
    """There."""
    vocabulary: int
    bytes: int
    """Of its checkpoint, about."""
    changes: tuple[tuple[str, object], ...] = ()
    """To its configuration; tuples stand for lists."""

    def make(self, device: torch.device, parent: Path) -> Path:
        folder = parent / self.name
        if not folder.exists():
            from transformers import AutoModelForCausalLM

            torch.manual_seed(0)
            with torch.device(device):
                model = AutoModelForCausalLM.from_config(self._config(), dtype=torch.bfloat16)
            unfinished = folder.with_suffix(".unfinished")
            model.save_pretrained(unfinished)
            unfinished.rename(folder)
        return folder

    def linears(self) -> list[str]:
        """Last names of what adapters target. Raises Unsupported, as all that needs the configuration."""
        return list(self._described().linears)

    def _config(self) -> Any:
        config = self._described().config()
        changes = {name: list(value) if isinstance(value, tuple) else value for name, value in self.changes}
        return type(config)(**config.to_diff_dict() | changes)

    def _described(self) -> Any:
        try:
            from ..family_checkpoints import ALL
        except ImportError as error:
            raise Unsupported(f"its checkpoint cannot be made here: {error}") from error
        return ALL[self.name]


FAMILIES: Final = (
    Family("opt-350m", 50272, 670 << 20),
    Family("gemma3-1b", 262144, 2010 << 20),
    Family("qwen3.5-0.8b", 248320, 1510 << 20),
)


MIXTURE_MODELS: Final = (Family("qwen3-30b-a3b, 8 layers", 151936, 10690 << 20),)
"""A sixth of the layers, so that two engines and transformers fit beside each other."""


@dataclass(frozen=True)
class Mixture:
    """How a layer of a model with experts is shaped."""

    name: str
    hidden: int
    inner: int
    experts: int
    per_token: int
    stored: tuple[str, ...]
    """bfloat16, int4, float8 or mxfp4."""


MIXTURES: Final = (
    Mixture("Qwen3-30B-A3B", 2048, 768, 128, 8, ("bfloat16", "int4", "float8")),
    Mixture("gpt-oss-20b", 2880, 2880, 32, 4, ("mxfp4", "bfloat16")),
)


@dataclass(frozen=True)
class Arrivals:
    """As a Poisson process has them."""

    requests: int
    apart: float
    """Decode steps from one to the next, on average."""
    short: int
    """Tokens of a prompt; `long` alike."""
    long: int
    one_in: int
    """So many prompts one is long."""
    answer: int
    """Tokens."""

    @property
    def streams(self) -> int:
        """That run at a time, on average."""
        return max(1, round(self.answer / self.apart))


ARRIVALS: Final = Arrivals(requests=400, apart=4, short=64, long=1024, one_in=40, answer=64)
