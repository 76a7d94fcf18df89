"""What a GPU's memory is for: weights, a step's activations, CUDA graphs and what they share, adapter pages, and KV
blocks with the rest.

`gpu_profile.py` measures weights, activations and what graphs share while nothing else is there; the others follow by
arithmetic.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from ..config import EngineConfig
from ..device.faults import memory_error
from ..model.config import ModelConfig
from ..runner.step_sizes import StepSizes, all_sizes
from ..status import DeviceMemory
from .kv_cache_size import LEAST_BLOCKS, KvCachePlan, block_bytes, plan_blocks

GRAPH_BYTES_PER_LAYER: Final = 400_000
"""Of a captured step, beside what graphs share; engines of the same shape of step report 0.38 MB."""
GRAPHS_SHARE: Final = 0.02
"""Of a card's memory, that captured steps take at most beside what they share, where the coarsest sizes fit in it."""
GRAPHS_ROOM: Final = 1.5
"""Steps that may be captured, for each one that is at the start: others come when somebody asks for them."""
MOST_UTILIZATION: Final = 0.98
"""Nobody is advised to go beyond: the driver and the desktop need some."""
SHORTER: Final = {"int4": 3.5, "fp8": 2.0}
"""About how much smaller 16-bit weights become, head and embedding left as they are."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Bytes measured at the start."""

    name: str
    """Of the device."""
    total: int
    free: int
    """Before anything of ours was there."""
    weights: int
    activations: int
    """Most that the largest step took on top."""
    graphs: int
    """Of all steps that will be captured, beside what they share: `estimate_graphs`."""
    graph_pool: int
    """What captured steps share: the tensors of the largest one."""

    @property
    def fixed(self) -> int:
        """What no setting of the caches changes."""
        return self.weights + self.activations + self.graphs + self.graph_pool


@dataclass(frozen=True, slots=True)
class MemorySplit:
    seen: Seen
    allowed: int
    """Bytes the engine may take in all."""
    adapters: int
    """Of rank pages."""
    cache: KvCachePlan

    @property
    def unused(self) -> int:
        """Allowed, and nobody's: less than a block, unless a size of the cache was set."""
        return self.allowed - self.seen.fixed - self.adapters - self.cache.bytes - self.cache.state_bytes

    @property
    def words(self) -> str:
        seen = self.seen
        parts = {"weights": seen.weights, "activations": seen.activations, "CUDA graphs": seen.graphs}
        parts |= {"graph pool": seen.graph_pool, "adapters": self.adapters, "KV cache": self.cache.bytes}
        parts |= {"recurrent states": self.cache.state_bytes} if self.cache.state_bytes else {}
        return ", ".join(f"{name} {gigabytes(size)}" for name, size in parts.items()) + (
            f"; of {gigabytes(self.allowed)} allowed, {gigabytes(seen.total)} in all"
        )

    def describe(self) -> DeviceMemory:
        """For EngineInfo, which tells weights, adapters and KV cache of any device."""
        seen = self.seen
        return DeviceMemory(
            total=seen.total, allowed=self.allowed, activations=seen.activations, graphs=seen.graphs,
            graph_pool=seen.graph_pool,
        )  # fmt: skip


class GraphPlan(NamedTuple):
    """Which steps are captured."""

    sizes: StepSizes
    most: int
    """How many, as the engine runs."""
    bytes: int
    """That as many take beside what they share: `estimate_graphs`."""


def plan_graphs(config: EngineConfig, layers: int, total: int) -> GraphPlan:
    """The finest sizes whose steps take no more than GRAPHS_SHARE of `total` bytes; else the coarsest."""
    room = int(total * GRAPHS_SHARE) // estimate_graphs(1, layers)
    choices = [*all_sizes(config.max_num_seqs, config.most_step_tokens)]
    sizes = next((choice for choice in choices if choice.captured <= room), choices[-1])
    most = max(sizes.captured, min(room, int(sizes.captured * GRAPHS_ROOM)))
    return GraphPlan(sizes, most, estimate_graphs(most, layers))


def estimate_graphs(captured: int, layers: int) -> int:
    """Bytes of as many captured steps of a model."""
    return captured * layers * GRAPH_BYTES_PER_LAYER


def allowed_memory(utilization: float, name: str, total: int, free: int) -> int:
    """Bytes that the engine may take in all. ValueError when others hold too much of them, or for no share at all."""
    if not 0 < utilization <= 1:
        raise ValueError(f"gpu_memory_utilization must be above 0 and at most 1, got {utilization}")
    allowed = int(total * utilization)
    if allowed > free:
        raise ValueError(
            f"gpu_memory_utilization {utilization:g} is {gigabytes(allowed)} of {name}, and {gigabytes(free)} are "
            f"free: other processes hold {gigabytes(total - free)}. End them, or set gpu_memory_utilization to "
            f"{math.floor(100 * free / total) / 100:g} or less"
        )
    return allowed


def split_memory(
    config: EngineConfig, model: ModelConfig, seen: Seen, cache_dtype: torch.dtype, static_scales: bool = False
) -> MemorySplit:
    """Adapters get what was asked for, KV blocks the rest. ValueError says what took how much, and what to change."""
    allowed = allowed_memory(config.gpu_memory_utilization, seen.name, seen.total, seen.free)
    left = allowed - seen.fixed
    share = config.adapter_memory_share
    adapters = config.adapter_memory if share is None else int(max(0, left) * share)
    cache = plan_blocks(config, model, cache_dtype, max(0, left - adapters), static_scales)
    split = MemorySplit(seen, allowed, adapters, cache)
    least = LEAST_BLOCKS * block_bytes(model, config.block_size, cache_dtype, static_scales)
    wanted = max(least, cache.bytes) + cache.state_bytes
    if left - adapters < wanted:
        raise ValueError(_refusal(config, model, split, wanted, cache_dtype))
    if cache.num_blocks < LEAST_BLOCKS:
        raise ValueError(f"the KV cache needs {LEAST_BLOCKS} blocks, {least:,} bytes; raise {_cache_setting(config)}")
    return split


@contextmanager
def no_room(when: str, *remedies: str) -> Iterator[None]:
    """Around a part of the start. ValueError in place of any library's way to say that the device's memory is used up:
    what was being done `when` it happened, and what to change."""
    try:
        yield
    except RuntimeError as error:
        first = memory_error(error)
        if first is None:
            raise
        words = str(first).strip().partition("\n")[0]
        changes = "; ".join((*remedies, "end other processes on the device", "serve a smaller model"))
        raise ValueError(
            f"the device ran out of memory as {when}. Change one or several of: {changes} ({words})"
        ) from error


class Remedy(NamedTuple):
    words: str
    freed: int
    """Bytes, at most."""


def _refusal(config: EngineConfig, model: ModelConfig, split: MemorySplit, wanted: int, dtype: torch.dtype) -> str:
    seen = split.seen
    left = split.allowed - seen.fixed - split.adapters
    remedies = sorted(_remedies(config, model, split, wanted - left, dtype), key=lambda remedy: -remedy.freed)
    caches = "the KV cache and recurrent states need" if split.cache.num_slots else "the KV cache needs"
    words = "; ".join(f"{remedy.words} (frees up to {gigabytes(remedy.freed)})" for remedy in remedies)
    return (
        f"{seen.name} has too little memory for this model and these settings: of {gigabytes(seen.total)}, "
        f"gpu_memory_utilization {config.gpu_memory_utilization:g} allows {gigabytes(split.allowed)}; weights take "
        f"{gigabytes(seen.weights)}, activations {gigabytes(seen.activations)}, CUDA graphs {gigabytes(seen.graphs)}, "
        f"graph pool {gigabytes(seen.graph_pool)}, adapters {gigabytes(split.adapters)}, which leaves "
        f"{gigabytes(left)}; {caches} {gigabytes(wanted)}, {gigabytes(wanted - left)} more. Change one or "
        f"several of: {words}"
    )


def _remedies(
    config: EngineConfig, model: ModelConfig, split: MemorySplit, missing: int, dtype: torch.dtype
) -> list[Remedy]:
    """Every setting that would help, with what it could give."""
    seen, found = split.seen, []
    most = min(MOST_UTILIZATION, math.floor(100 * seen.free / seen.total) / 100)
    if most > config.gpu_memory_utilization:
        found.append(Remedy(f"raise gpu_memory_utilization up to {most:g}", int(most * seen.total) - split.allowed))
    if split.adapters:
        share = config.adapter_memory_share
        words = "lower adapter_memory" if share is None else f"lower adapter_memory_share, now {share:g}"
        found.append(Remedy(words, split.adapters))
    if seen.activations:
        words = f"lower max_num_batched_tokens, now {config.max_num_batched_tokens}"
        found.append(Remedy(words, seen.activations))
    if seen.graphs or seen.graph_pool:
        found.append(Remedy(f"lower max_num_seqs, now {config.max_num_seqs}", seen.graphs + seen.graph_pool))
    if config.quantization == "none" and model.quantization is None:
        for word, ratio in SHORTER.items():
            found.append(Remedy(f"set quantization to {word}", int(seen.weights * (1 - 1 / ratio))))
    if config.num_state_slots is not None and split.cache.num_slots:
        found.append(Remedy("lower num_state_slots", split.cache.state_bytes))
    if split.cache.bytes and dtype.itemsize > 1:
        found.append(Remedy("set kv_cache_dtype to fp8_e4m3", split.cache.bytes // 2))
    if split.cache.bytes and (config.num_kv_blocks is not None or config.kv_cache_memory is not None):
        found.append(Remedy(f"lower {_cache_setting(config)}", min(missing, split.cache.bytes)))
    return found


def _cache_setting(config: EngineConfig) -> str:
    return "kv_cache_memory" if config.num_kv_blocks is None else "num_kv_blocks"


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
