"""`make bench-lora`: what adapters cost beside the own base, on a random checkpoint of 0.5B dimensions.

Ratios measured in one run, both sides in turn, medians. python -m benchmarks.lora [--rounds 5] [--only NAME ...]
"""

import argparse
import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from loraplex.engine.threads import prepare_environment

prepare_environment()

import torch  # noqa: E402
from peft import PeftModel  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from loraplex.web.load import run_round  # noqa: E402

from .checkpoints import HALF_BILLION, adapter, base_checkpoint  # noqa: E402
from .engine import MeasuredEngine  # noqa: E402
from .report import Row, publish  # noqa: E402
from .server import serving  # noqa: E402

MEMORY = 2 << 30
"""Bytes of adapter memory: room for all adapters of a row."""
DECODE_STEPS = 24
MIXED_RANKS = (8, 16, 32, 64)


def medians(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """One call of each side to warm up, then `rounds` of each in turn."""
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()
    for _ in range(rounds):
        for name, call in sides.items():
            measured[name].append(call())
    return {name: statistics.median(values) for name, values in measured.items()}


def rank16(count: int) -> dict[str, Path]:
    return {f"r16-{seed}": adapter(HALF_BILLION, rank=16, seed=seed) for seed in range(1, count + 1)}


def decode_and_prefill(rounds: int) -> list[Row]:
    adapters = rank16(8)
    engine = MeasuredEngine(base_checkpoint(HALF_BILLION), adapters, MEMORY)
    names = [list(adapters)[index % 8] for index in range(16)]
    rates = medians(
        {
            "base": lambda: engine.decode_rate([None] * 16, 16, DECODE_STEPS),
            "adapters": lambda: engine.decode_rate(names, 16, DECODE_STEPS),
            "base prefill": lambda: engine.prefill_rate([None] * 4, 512),
            "adapters prefill": lambda: engine.prefill_rate(names[:4], 512),
        },
        rounds,
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


def unused(rounds: int) -> list[Row]:
    """One engine, that two sides differ in nothing else: its adapters come and go between the rounds."""
    adapters = rank16(8)
    engine = MeasuredEngine(base_checkpoint(HALF_BILLION), adapters, MEMORY)

    def rate(change: Callable[[str], None]) -> float:
        for name in adapters:
            change(name)
        return engine.decode_rate([None] * 16, 16, DECODE_STEPS)

    rates = medians({"without": lambda: rate(engine.evict), "holding": lambda: rate(engine.load)}, 2 * rounds)
    engine.close()
    return [Row("decode: 8 adapters held and unused / none", rates["holding"] / rates["without"], "x", 0.995)]


def own_rank(rounds: int) -> list[Row]:
    """Neither time nor memory of an adapter follows the largest one that the engine holds."""
    model, names = base_checkpoint(HALF_BILLION), [f"r8-{index % 8}" for index in range(16)]
    small = {f"r8-{index}": adapter(HALF_BILLION, rank=8, seed=index) for index in range(8)}
    wide = small | {"r256": adapter(HALF_BILLION, rank=256, seed=1)}
    alone, beside = MeasuredEngine(model, small, MEMORY), MeasuredEngine(model, wide, MEMORY)
    rates = medians(
        {
            "alone": lambda: alone.decode_rate(names, 16, DECODE_STEPS),
            "beside": lambda: beside.decode_rate(names, 16, DECODE_STEPS),
        },
        2 * rounds,
    )
    alone.close()
    beside.close()
    return [Row("decode: 8 adapters r=8 beside one of r=256 / without it", rates["beside"] / rates["alone"], "x", 0.97)]


def cold_start(rounds: int) -> list[Row]:
    """A new adapter with 64 resident: what its first token waits for it, and the same of peft."""
    adapters = rank16(64)
    engine = MeasuredEngine(base_checkpoint(HALF_BILLION), adapters, 2 * MEMORY)
    news = [adapter(HALF_BILLION, rank=16, seed=100 + index) for index in range(rounds)]
    resident, added, reading = [], [], []
    for index, folder in enumerate(news):
        file = folder / "adapter_model.safetensors"
        reading.append(_read_seconds(file))
        resident.append(engine.first_token_seconds("r16-1"))
        engine.register(f"new-{index}", folder)
        added.append(engine.first_token_seconds(f"new-{index}") - resident[-1])
    engine.close()
    ours, floor = statistics.median(added), statistics.median(reading)
    peers = _peft_load_seconds(list(adapters.values()), news)
    return [
        Row("new adapter with 64 resident: added to the first token", 1000 * ours, "ms"),
        Row("reading its file", 1000 * floor, "ms"),
        Row("added / (2 x reading + 5 ms)", ours / (2 * floor + 0.005), "x", 1.0, at_least=False),
        Row("peft.load_adapter with 64 loaded", 1000 * peers, "ms"),
        Row("peft.load_adapter / added", peers / ours, "x", 5.0),
    ]


def _read_seconds(file: Path) -> float:
    buffer = bytearray(file.stat().st_size)
    started = time.perf_counter()
    with file.open("rb", buffering=0) as source:
        view = memoryview(buffer)
        while view:
            view = view[source.readinto(view) :]
    return time.perf_counter() - started


def _peft_load_seconds(resident: list[Path], news: list[Path]) -> float:
    base = AutoModelForCausalLM.from_pretrained(base_checkpoint(HALF_BILLION), dtype=torch.bfloat16)
    model = PeftModel.from_pretrained(base, resident[0], adapter_name="first")
    for index, folder in enumerate(resident[1:]):
        model.load_adapter(folder, adapter_name=f"resident-{index}")
    seconds = []
    for index, folder in enumerate(news):
        started = time.perf_counter()
        model.load_adapter(folder, adapter_name=f"new-{index}")
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def through_http(rounds: int) -> list[Row]:
    """32 adapters of four ranks, 16 streams at a time, 128 tokens in and 64 out."""
    adapters = {
        f"mixed-{index}": adapter(HALF_BILLION, rank=MIXED_RANKS[index % 4], seed=1 + index // 4) for index in range(32)
    }
    randomness = random.Random(0)
    prompts = [[randomness.randrange(10, HALF_BILLION.vocab) for _ in range(128)] for _ in range(16)]
    halves = [list(adapters)[:16], list(adapters)[16:]]
    settings = {"enable_prefix_caching": False, "adapter_memory": MEMORY, "max_loaded_adapters": 64}
    base_rates, adapter_rates = [], []
    with serving(base_checkpoint(HALF_BILLION), adapters, served_name="base", **settings) as server:
        for names in (["base"] * 16, *halves):
            asyncio.run(run_round(server, names, prompts, 4))
        for index in range(rounds):
            base_rates.append(asyncio.run(run_round(server, ["base"] * 16, prompts, 64)).tokens_per_second)
            adapter_rates.append(asyncio.run(run_round(server, halves[index % 2], prompts, 64)).tokens_per_second)
    base, mixed = statistics.median(base_rates), statistics.median(adapter_rates)
    return [
        Row("through HTTP: base", base, "tokens/s"),
        Row("through HTTP: 32 adapters r in {8, 16, 32, 64}", mixed, "tokens/s"),
        Row("through HTTP: 32 adapters / base", mixed / base, "x", 0.75),
    ]


PARTS: dict[str, Callable[[int], list[Row]]] = {
    "decode": decode_and_prefill,
    "unused": unused,
    "own-rank": own_rank,
    "cold": cold_start,
    "http": through_http,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    arguments = parser.parse_args()
    notes = {"rounds": arguments.rounds, "cores": len(os.sched_getaffinity(0))}
    for name in arguments.only:
        print(publish(f"lora-cpu-{name}", PARTS[name](arguments.rounds), notes))


if __name__ == "__main__":
    main()
