"""`make bench-lora`: what adapters cost beside the own base, on a random checkpoint of 0.5B dimensions.

Ratios measured in one run, both sides in turn, medians.

    python -m benchmarks.lora [--rounds 5] [--only NAME ...] [--tiny]
"""

import asyncio
import os
import random
import statistics
import time
from pathlib import Path

from loraplex.engine.device.threads import prepare_environment

prepare_environment()

from loraplex.web.load_generator import run_round  # noqa: E402

from .checkpoints import adapter, base_checkpoint  # noqa: E402
from .command_line import Part, run_parts  # noqa: E402
from .engine import MeasuredEngine  # noqa: E402
from .many_adapters import many_adapters  # noqa: E402
from .peft_batch import ADAPTERS, gather_rows, peft_batch, peft_peer, rank16  # noqa: E402
from .report import Row  # noqa: E402
from .scale import Scale, median_ratio, medians  # noqa: E402
from .server import serving  # noqa: E402

MEMORY = 2 << 30
"""Bytes of adapter memory: room for all adapters of a row."""
DECODE_STEPS = 24
PAIRS = 6
"""For each round, of two sides that run the same code."""
SECONDS_BETWEEN = 6.0
"""From the load of one new adapter to the next."""
MIXED_RANKS = (8, 16, 32, 64)


def decode_and_prefill(scale: Scale) -> list[Row]:
    adapters = rank16(scale.dimensions, 8)
    engine = MeasuredEngine(base_checkpoint(scale.dimensions), adapters, MEMORY)
    names = [list(adapters)[index % 8] for index in range(16)]
    rates = medians(
        {
            "base": lambda: engine.decode_rate([None] * 16, 16, DECODE_STEPS),
            "adapters": lambda: engine.decode_rate(names, 16, DECODE_STEPS),
            "base prefill": lambda: engine.prefill_rate([None] * 4, 512),
            "adapters prefill": lambda: engine.prefill_rate(names[:4], 512),
        },
        scale.rounds,
    )
    engine.close()
    return [
        Row("decode, 16 sequences: base", rates["base"], "tokens/s"),
        Row("decode, 16 sequences: 8 adapters r=16", rates["adapters"], "tokens/s"),
        Row("decode: 8 adapters / base", rates["adapters"] / rates["base"], "x", 0.82),
        Row("prefill, 4 x 512: base", rates["base prefill"], "tokens/s"),
        Row("prefill, 4 x 512: 4 adapters r=16", rates["adapters prefill"], "tokens/s"),
        Row("prefill: 4 adapters / base", rates["adapters prefill"] / rates["base prefill"], "x", 0.92),
    ]


def unused(scale: Scale) -> list[Row]:
    """Beside an engine that can hold none: no page, no host cache, and the one slot that there has to be."""
    model, names = base_checkpoint(scale.dimensions), [None] * 16
    held = MeasuredEngine(model, rank16(scale.dimensions, 8), MEMORY)
    off = MeasuredEngine(model, {}, 0, adapter_host_memory=0, max_loaded_adapters=1)
    ratio = median_ratio(
        lambda: held.decode_rate(names, 16, DECODE_STEPS),
        lambda: off.decode_rate(names, 16, DECODE_STEPS),
        PAIRS * scale.rounds,
    )
    held.close()
    off.close()
    return [Row("decode: 8 adapters held and unused / LoRA off", ratio, "x", 0.995)]


def own_rank(scale: Scale) -> list[Row]:
    """Neither time nor memory of an adapter follows the largest one that the engine holds."""
    model, names = base_checkpoint(scale.dimensions), [f"r8-{index % 8}" for index in range(16)]
    small = {f"r8-{index}": adapter(scale.dimensions, rank=8, seed=index) for index in range(8)}
    wide = small | {"r256": adapter(scale.dimensions, rank=256, seed=1)}
    alone, beside = MeasuredEngine(model, small, MEMORY), MeasuredEngine(model, wide, MEMORY)
    ratio = median_ratio(
        lambda: beside.decode_rate(names, 16, DECODE_STEPS),
        lambda: alone.decode_rate(names, 16, DECODE_STEPS),
        PAIRS * scale.rounds,
    )
    taken = beside.adapter_bytes()
    small_bytes, wide_bytes = sum(taken[name] for name in small), taken["r256"]
    small_ranks, wide_ranks = beside.rank_bytes(8 * len(small)), beside.rank_bytes(256)
    alone.close()
    beside.close()
    return [
        Row("decode: 8 adapters r=8 beside one of r=256 / without it", ratio, "x", 0.97),
        Row("memory: 8 adapters r=8 beside one of r=256", small_bytes / 1e6, "MB"),
        Row("memory: the one of r=256", wide_bytes / 1e6, "MB"),
        Row("memory: 8 adapters r=8 / what their ranks say", small_bytes / small_ranks, "x", 1.01, at_least=False),
        Row("memory: the one of r=256 / what its rank says", wide_bytes / wide_ranks, "x", 1.01, at_least=False),
    ]


def cold_start(scale: Scale) -> list[Row]:
    """A new adapter with many resident: what its first token waits for it, and the same of peft. Its file comes from
    storage: before each reading the system is told to forget it. The engine has had no work for some seconds. A first
    token takes several times what the load adds to it, and neighbours move it: a resident's before and after each."""
    adapters = rank16(scale.dimensions, scale.peft)
    engine = MeasuredEngine(base_checkpoint(scale.dimensions), adapters, 2 * MEMORY)
    news = [adapter(scale.dimensions, rank=16, seed=100 + index) for index in range(3 * scale.rounds)]
    added, reading, warm = [], [], []
    for index, folder in enumerate(news):
        file = folder / "adapter_model.safetensors"
        _forget(file)
        reading.append(_read_seconds(file))
        warm.append(_read_seconds(file))
        engine.rest(SECONDS_BETWEEN)
        before = engine.first_token_seconds("r16-1")
        engine.register(f"new-{index}", folder)
        _forget(file)
        new = engine.first_token_seconds(f"new-{index}")
        added.append(new - (before + engine.first_token_seconds("r16-1")) / 2)
    threads = engine.num_threads
    engine.close()
    ours, floor = statistics.median(added), statistics.median(reading)
    peers = _peft_load_seconds(scale, threads, news[: scale.rounds])
    return [
        Row(f"new adapter with {scale.peft} resident: added to the first token", 1000 * ours, "ms"),
        Row("reading its file", 1000 * floor, "ms"),
        Row("reading its file out of the page cache", 1000 * statistics.median(warm), "ms"),
        Row("added / (2 x reading + 5 ms)", ours / (2 * floor + 0.005), "x", 1.0, at_least=False),
        Row(f"peft.load_adapter with {scale.peft} loaded", 1000 * peers, "ms"),
        Row("peft.load_adapter / added", peers / ours, "x", 5.0),
    ]


def _forget(file: Path) -> None:
    with file.open("rb") as source:
        os.fsync(source.fileno())
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_seconds(file: Path) -> float:
    buffer = bytearray(file.stat().st_size)
    started = time.perf_counter()
    with file.open("rb", buffering=0) as source:
        view = memoryview(buffer)
        while view:
            view = view[source.readinto(view) :]
    return time.perf_counter() - started


def _peft_load_seconds(scale: Scale, threads: int, news: list[Path]) -> float:
    """With as many loaded as the engine had; those of `peft-batch` are loaded already where that row came first."""
    peer, residents = peft_peer(scale.dimensions, threads), rank16(scale.dimensions, scale.peft)
    for name in list(residents)[ADAPTERS:]:
        peer.load(name, residents[name])
    return statistics.median(peer.load(f"new-{index}", folder) for index, folder in enumerate(news))


def through_http(scale: Scale) -> list[Row]:
    """32 adapters of four ranks, 16 streams at a time, 128 tokens in and 64 out."""
    adapters = {
        f"mixed-{index}": adapter(scale.dimensions, rank=MIXED_RANKS[index % 4], seed=1 + index // 4)
        for index in range(32)
    }
    randomness = random.Random(0)
    prompts = [[randomness.randrange(10, scale.dimensions.vocab) for _ in range(128)] for _ in range(16)]
    halves = [list(adapters)[:16], list(adapters)[16:]]
    settings = {"enable_prefix_caching": False, "adapter_memory": MEMORY, "max_loaded_adapters": 64}
    base_rates, adapter_rates = [], []
    with serving(base_checkpoint(scale.dimensions), adapters, served_name="base", **settings) as server:
        for names in (["base"] * 16, *halves):
            asyncio.run(run_round(server, names, prompts, 4))
        for index in range(scale.rounds):
            base_rates.append(asyncio.run(run_round(server, ["base"] * 16, prompts, 64)).tokens_per_second)
            adapter_rates.append(asyncio.run(run_round(server, halves[index % 2], prompts, 64)).tokens_per_second)
    base, mixed = statistics.median(base_rates), statistics.median(adapter_rates)
    return [
        Row("through HTTP: base", base, "tokens/s"),
        Row("through HTTP: 32 adapters r in {8, 16, 32, 64}", mixed, "tokens/s"),
        Row("through HTTP: 32 adapters / base", mixed / base, "x", 0.75),
    ]


PARTS: dict[str, Part] = {
    "decode": decode_and_prefill,
    "unused": unused,
    "own-rank": own_rank,
    "gather": gather_rows,
    "peft-batch": peft_batch,
    "cold": cold_start,
    "many": many_adapters,
    "http": through_http,
}

if __name__ == "__main__":
    run_parts(__doc__, "lora-cpu", PARTS)
