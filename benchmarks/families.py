"""Small models of several families through HTTP beside transformers + peft, in one run, interleaved, medians.

python -m benchmarks.families [--rounds 3] [--only opt-350m|gemma3-1b|qwen3.5-0.8b]
"""

import argparse

from .family_checkpoints import MODELS, family_adapter, family_checkpoint
from .peers import faster_dtype
from .report import Row, publish
from .serving import CONCURRENT, Workload, compare, stream_rows

ADAPTERS = 8
STREAM_TOKENS = 64


def workload(name: str) -> Workload:
    adapters = {f"adapter-{seed}": family_adapter(name, seed) for seed in range(ADAPTERS)}
    peer_mixes = not name.startswith("opt")  # OPT's layers flatten the batch, and peft counts its rows
    return Workload(name, family_checkpoint(name), adapters, MODELS[name].vocab, 2.0, None, 0.75, peer_mixes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(MODELS))
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name in [arguments.only] if arguments.only else MODELS:
        rows += compare(workload(name), arguments.rounds)
        rows += stream_rows(name, family_checkpoint(name), MODELS[name].vocab, STREAM_TOKENS, arguments.rounds, 1.5)
    notes = {"peer dtype": str(faster_dtype()), "rounds": arguments.rounds, "concurrent": CONCURRENT}
    suffix = f"-{arguments.only}" if arguments.only else ""
    print(publish(f"families-cpu{suffix}", rows, notes))


if __name__ == "__main__":
    main()
