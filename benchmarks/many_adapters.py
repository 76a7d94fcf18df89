"""A thousand adapters of four ranks under Zipf-like demand, with room for 32 in memory, beside five that always fit."""

import random
import statistics
from pathlib import Path

from .checkpoints import Dimensions, adapter, adapter_like, base_checkpoint
from .engine import MeasuredEngine, Served
from .report import Row
from .scale import Scale

RANKS = (32, 8, 64, 16)
"""Of the most wanted adapter and so on, over and over: in this order the mean rank of a request is 30 on both sides."""
WEIGHT_FILES = 2
"""Different ones of each rank; adapters that share one differ in lora_alpha, so in their digest."""
FEW, STREAMS = 5, 16
HOST_SHARE = 4
"""Host cache over adapter memory."""
SETTLING = 6
"""Requests before the first round, over adapters that both caches hold: long traffic has filled them by then."""


def many_adapters(scale: Scale) -> list[Row]:
    folders = crowd(scale.dimensions, scale.crowd)
    names = list(folders)
    memory = scale.resident * sum(_weights(folder) for folder in list(folders.values())[: len(RANKS)]) // len(RANKS)
    engine = MeasuredEngine(
        base_checkpoint(scale.dimensions),
        {},
        memory,
        adapter_host_memory=HOST_SHARE * memory,
        num_kv_blocks=STREAMS * (2 + (scale.prompt_tokens + scale.output_tokens) // 16),
    )
    empty = _restart_peak()
    engine.register_all(folders)
    randomness, rounds = random.Random(0), {"few": list[Served](), "many": list[Served]()}
    settling = SETTLING * scale.resident * (1 + HOST_SHARE)
    engine.serve(_demand(randomness, names, settling), STREAMS, prompt_tokens=1, max_tokens=1)
    before = engine.count_loads()
    for _ in range(scale.rounds):
        for side, wanted in (("few", names[:FEW]), ("many", names)):
            for name in names[:FEW] if side == "few" else ():
                engine.load(name)
            asked = _demand(randomness, wanted, scale.requests)
            rounds[side].append(engine.serve(asked, STREAMS, scale.prompt_tokens, scale.output_tokens))
    peak = _peak() - empty
    loads, host_loads = (now - then for now, then in zip(engine.count_loads(), before, strict=True))
    engine.close()
    return [
        *_speed(rounds["few"], rounds["many"], scale.crowd),
        Row("many: loads in all rounds", loads, ""),
        Row("many: of them out of the host cache", host_loads, ""),
        Row("many: most memory above the empty engine", peak / 1e6, "MB"),
        Row("many: that / adapter memory and host cache", peak / (memory * (1 + HOST_SHARE)), "x", 1.1, at_least=False),
    ]


def _demand(randomness: random.Random, names: list[str], count: int) -> list[str]:
    """Zipf-like, the first name the most wanted."""
    return randomness.choices(names, [1 / place for place in range(1, len(names) + 1)], k=count)


def crowd(dimensions: Dimensions, count: int) -> dict[str, Path]:
    """`count` adapters, most of which cost no disk."""
    folders = {}
    for index in range(count):
        source = adapter(dimensions, RANKS[index % len(RANKS)], seed=1 + index // len(RANKS) % WEIGHT_FILES)
        folders[f"crowd-{index}"] = adapter_like(source, index)
    return folders


def _speed(few: list[Served], many: list[Served], count: int) -> list[Row]:
    few_rate, many_rate = (statistics.median(one.tokens_per_second for one in side) for side in (few, many))
    few_first, many_first = (_late([first for one in side for first in one.first]) for side in (few, many))
    return [
        Row(f"many: {FEW} adapters", few_rate, "tokens/s"),
        Row(f"many: {count} adapters", many_rate, "tokens/s"),
        Row(f"many: {count} adapters / {FEW}", many_rate / few_rate, "x", 0.95),
        Row(f"many: {FEW} adapters, p99 TTFT", 1000 * few_first, "ms"),
        Row(f"many: {count} adapters, p99 TTFT", 1000 * many_first, "ms"),
        Row(f"many: p99 TTFT, {count} adapters / {FEW}", many_first / few_first, "x", 1.3, at_least=False),
    ]


def _late(seconds: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[98]


def _weights(folder: Path) -> int:
    return (folder / "adapter_model.safetensors").stat().st_size


def _restart_peak() -> int:
    """Bytes that this process has in memory; its peak counts from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
