"""`make bench`: tokens/s and TTFT through HTTP beside transformers + peft, in one run, interleaved, medians.

python -m benchmarks.serving [--rounds 3] [--only demo|half-billion|small]
"""

import argparse
import asyncio
import os
import random
import statistics
from dataclasses import dataclass
from pathlib import Path

from examples.demo.jobs import JOBS
from loraplex.web.load_generator import Round, run_round

from .checkpoints import HALF_BILLION, SMALL, adapter, base_checkpoint
from .peers import Transformers, faster_dtype
from .report import Row, publish
from .server import serving

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo"
THREADS = len(os.sched_getaffinity(0))
CONCURRENT, PROMPT_TOKENS, OUTPUT_TOKENS = 16, 128, 64
BASE = "base"
"""The base model's name in the API."""


@dataclass(frozen=True)
class Workload:
    """What both sides run: the same prompts, base for all, then adapters in turn."""

    name: str
    model: Path
    adapters: dict[str, Path]
    vocab: int
    base_goal: float | None = None
    adapter_goal: float | None = None
    retention_goal: float | None = None
    peer_mixes: bool = True
    """Whether peft can batch several adapters on this model."""


def half_billion() -> Workload:
    adapters = {f"adapter-{index}": adapter(HALF_BILLION, rank=16, seed=index + 1) for index in range(8)}
    return Workload("half-billion", base_checkpoint(HALF_BILLION), adapters, HALF_BILLION.vocab, 1.8, 2.8, 0.75)


def demo() -> Workload:
    # PEFT's batches of several adapters take no DoRA.
    adapters = {job.name: DEMO / "adapters" / job.name for job in JOBS if not job.dora}
    return Workload("demo", DEMO / "model", adapters, 256)


def compare(workload: Workload, rounds: int) -> list[Row]:
    """Rounds of ours and of the peer in turn, so that a slow minute of the machine hits both."""
    randomness = random.Random(0)
    prompts = [[randomness.randrange(10, workload.vocab) for _ in range(PROMPT_TOKENS)] for _ in range(CONCURRENT)]
    names = [list(workload.adapters)[index % len(workload.adapters)] for index in range(CONCURRENT)]
    peer = Transformers(workload.model, workload.adapters, faster_dtype(), THREADS)
    ours_base: list[Round] = []
    ours_adapters: list[Round] = []
    peer_base: list[float] = []
    peer_adapters: list[float] = []
    with serving(workload.model, workload.adapters, served_name=BASE, enable_prefix_caching=False) as server:
        base = [BASE] * CONCURRENT
        for models in (base, names):
            asyncio.run(run_round(server, models, prompts, 4))
        for _ in range(rounds):
            ours_base.append(asyncio.run(run_round(server, base, prompts, OUTPUT_TOKENS)))
            peer_base.append(peer.tokens_per_second(prompts, OUTPUT_TOKENS))
            ours_adapters.append(asyncio.run(run_round(server, names, prompts, OUTPUT_TOKENS)))
            if workload.peer_mixes:
                peer_adapters.append(peer.tokens_per_second(prompts, OUTPUT_TOKENS, names))
    return _rows(workload, ours_base, ours_adapters, peer_base, peer_adapters)


def _rows(
    workload: Workload,
    ours_base: list[Round],
    ours_adapters: list[Round],
    peer_base: list[float],
    peer_adapters: list[float],
) -> list[Row]:
    base, mixed = _rate(ours_base), _rate(ours_adapters)
    peer = statistics.median(peer_base)
    count, name = len(workload.adapters), workload.name
    return [
        Row(f"{name}: base", base, "tokens/s"),
        Row(f"{name}: base, transformers", peer, "tokens/s"),
        Row(f"{name}: base / transformers", base / peer, "x", workload.base_goal),
        Row(f"{name}: {count} adapters", mixed, "tokens/s"),
        *_beside_peft(f"{name}: {count} adapters", mixed, peer_adapters, workload.adapter_goal),
        Row(f"{name}: {count} adapters / own base", mixed / base, "x", workload.retention_goal),
        Row(f"{name}: TTFT, base", _first(ours_base), "ms"),
        Row(f"{name}: TTFT, {count} adapters", _first(ours_adapters), "ms"),
    ]


def _beside_peft(name: str, ours: float, peer: list[float], goal: float | None) -> list[Row]:
    if not peer:
        return []
    rate = statistics.median(peer)
    return [
        Row(f"{name}, transformers + peft", rate, "tokens/s"),
        Row(f"{name} / transformers + peft", ours / rate, "x", goal),
    ]


def _rate(rounds: list[Round]) -> float:
    return statistics.median(one.tokens_per_second for one in rounds)


def _first(rounds: list[Round]) -> float:
    return 1000 * statistics.median(one.first_token for one in rounds)


def single_stream(rounds: int) -> list[Row]:
    """Host cost: time per output token of one stream on a small model, where the model itself is cheap."""
    name, rounds = "25M parameters", max(5, rounds)
    ours, peer, ratio = stream_rows(name, base_checkpoint(SMALL), SMALL.vocab, 256, rounds, None)
    return [Row(ours.what, ours.value, "ms", 4.5, at_least=False), peer, ratio]


def stream_rows(name: str, model: Path, vocab: int, output_tokens: int, rounds: int, goal: float | None) -> list[Row]:
    """Time per output token of one stream; goal: of the peer's time over ours."""
    prompt = [[random.Random(1).randrange(10, vocab) for _ in range(32)]]
    peer = Transformers(model, {}, faster_dtype(), THREADS)
    ours: list[float] = []
    peers: list[float] = []
    with serving(model, {}, served_name=BASE, enable_prefix_caching=False) as server:
        asyncio.run(run_round(server, [BASE], prompt, 8))
        for _ in range(rounds):
            ours.append(1000 * asyncio.run(run_round(server, [BASE], prompt, output_tokens)).per_token)
            peers.append(1000 / peer.tokens_per_second(prompt, output_tokens))
    name = f"{name}, one stream: TPOT"
    per_token, peer_token = statistics.median(ours), statistics.median(peers)
    return [
        Row(name, per_token, "ms"),
        Row(f"{name}, transformers", peer_token, "ms"),
        Row(f"{name}, transformers / ours", peer_token / per_token, "x", goal),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["demo", "half-billion", "small"])
    arguments = parser.parse_args()
    rows: list[Row] = []
    if arguments.only in (None, "small"):
        rows += single_stream(arguments.rounds)
    for name, workload in (("demo", demo), ("half-billion", half_billion)):
        if arguments.only in (None, name):
            rows += compare(workload(), arguments.rounds)
    notes = {"peer dtype": str(faster_dtype()), "rounds": arguments.rounds, "concurrent": CONCURRENT}
    suffix = f"-{arguments.only}" if arguments.only else ""
    print(publish(f"serving-cpu{suffix}", rows, notes))


if __name__ == "__main__":
    main()
