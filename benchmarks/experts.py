"""A mixture of 16 experts, 2B parameters of which a token reads 0.5B, through HTTP: beside transformers + peft, its own
base, the memory's bandwidth, and int4 beside bf16; adapters on attention and on every expert beside the own base. All
in one run, interleaved, medians.

python -m benchmarks.experts [--rounds 3] [--only stream|batch|adapted]
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from pathlib import Path

import torch
from safetensors import safe_open

from loraplex.web.load_generator import run_round

from .family_checkpoints import MIXTURE, MIXTURES, expert_adapter, family_adapter, family_checkpoint
from .peers import faster_dtype
from .report import Row, publish
from .server import serving
from .serving import BASE, CONCURRENT, OUTPUT_TOKENS, PROMPT_TOKENS, THREADS, Workload, compare

ADAPTERS = 8
ADAPTER_MEMORY = 1 << 30
"""Bytes. Eight adapters on attention and on every expert take 0.7 GB, more than a server's default."""
STREAM_TOKENS = 64
READ_BYTES = 1 << 30


def workload() -> Workload:
    adapters = {f"adapter-{seed}": family_adapter(MIXTURE, seed) for seed in range(ADAPTERS)}
    return Workload(MIXTURE, family_checkpoint(MIXTURE), adapters, MIXTURES[MIXTURE].vocab, 2.0, None, 0.70)


def stream_rows(rounds: int) -> list[Row]:
    """Time per output token of one stream, in bf16 and int4."""
    folder = family_checkpoint(MIXTURE)
    prompt = [[random.Random(1).randrange(10, MIXTURES[MIXTURE].vocab) for _ in range(32)]]
    plain: list[float] = []
    coded: list[float] = []
    bounds: list[float] = []
    touched = touched_bytes(folder)
    with (
        serving(folder, {}, served_name=BASE, enable_prefix_caching=False) as bf16,
        serving(folder, {}, served_name=BASE, enable_prefix_caching=False, quantization="int4") as int4,
    ):
        for server in (bf16, int4):
            asyncio.run(run_round(server, [BASE], prompt, 8))
        for _ in range(rounds):
            bounds.append(1000 * touched / read_bandwidth())
            for server, figures in ((bf16, plain), (int4, coded)):
                figures.append(1000 * asyncio.run(run_round(server, [BASE], prompt, STREAM_TOKENS)).per_token)
    ours, quantized, bound = (statistics.median(figures) for figures in (plain, coded, bounds))
    name = f"{MIXTURE}, one stream: TPOT"
    return [
        Row(name, ours, "ms"),
        Row(f"{name}, the bytes that a token reads at the memory's bandwidth", bound, "ms"),
        Row(f"{name}, that / ours", bound / ours, "x", 0.6),
        Row(f"{name}, int4", quantized, "ms"),
        Row(f"{name}, int4 / bf16", quantized / ours, "x", 0.55, at_least=False),
    ]


def adapted_rows(rounds: int) -> list[Row]:
    """Tokens a second of all requests, of the base and of adapters on attention and on every expert."""
    adapters = {f"adapter-{seed}": expert_adapter(MIXTURE, seed) for seed in range(ADAPTERS)}
    numbers = random.Random(0)
    prompts = [
        [numbers.randrange(10, MIXTURES[MIXTURE].vocab) for _ in range(PROMPT_TOKENS)] for _ in range(CONCURRENT)
    ]
    sides = [BASE] * CONCURRENT, [list(adapters)[at % ADAPTERS] for at in range(CONCURRENT)]
    figures: tuple[list[float], list[float]] = [], []
    settings = {"served_name": BASE, "enable_prefix_caching": False, "adapter_memory": ADAPTER_MEMORY}
    with serving(family_checkpoint(MIXTURE), adapters, **settings) as server:
        for models in sides:
            asyncio.run(run_round(server, models, prompts, 4))
        for _ in range(rounds):
            for models, speeds in zip(sides, figures, strict=True):
                speeds.append(asyncio.run(run_round(server, models, prompts, OUTPUT_TOKENS)).tokens_per_second)
    base, adapted = (statistics.median(speeds) for speeds in figures)
    ratio = statistics.median(ours / own for own, ours in zip(*figures, strict=True))
    name = f"{MIXTURE}, {CONCURRENT} concurrent"
    return [
        Row(f"{name}: base", base, "tok/s"),
        Row(f"{name}: {ADAPTERS} adapters on attention and experts", adapted, "tok/s"),
        Row(f"{name}: these / base", ratio, "x", 0.70),
    ]


def touched_bytes(folder: Path) -> float:
    """That a token reads: of each layer's experts its own, and all else once."""
    config = json.loads((folder / "config.json").read_text())
    share = config["num_experts_per_tok"] / config["num_local_experts"]
    total = 0.0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                size = 2 * torch.Size(opened.get_slice(name).get_shape()).numel()
                total += size * (share if ".experts." in name else 1.0)
    return total


def read_bandwidth() -> float:
    """Bytes a second of a sum over far more than the caches hold; the best of five."""
    torch.set_num_threads(THREADS)
    numbers = torch.ones(READ_BYTES // 4)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        numbers.sum()
        best = min(best, time.perf_counter() - started)
    return READ_BYTES / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["stream", "batch", "adapted"])
    arguments = parser.parse_args()
    rows: list[Row] = []
    if arguments.only in (None, "stream"):
        rows += stream_rows(arguments.rounds)
    if arguments.only in (None, "batch"):
        rows += compare(workload(), arguments.rounds)
    if arguments.only in (None, "adapted"):
        rows += adapted_rows(arguments.rounds)
    notes = {"peer dtype": str(faster_dtype()), "rounds": arguments.rounds, "concurrent": CONCURRENT}
    suffix = f"-{arguments.only}" if arguments.only else ""
    print(publish(f"experts-cpu{suffix}", rows, notes))


if __name__ == "__main__":
    main()
