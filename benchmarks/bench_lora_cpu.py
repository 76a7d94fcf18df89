"""Cost of LoRA on top of the base linears, all seven linears of a 0.5B model on this CPU, in one process, best of many.

    python -m benchmarks.bench_lora_cpu [--tokens 16] [--adapters 8] [--rank 16] [--layers 4] [--rounds 50]

Compared with the usual way in torch: gather each token's A and B, two batched matrix products.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.bench_linear import SHAPES as LINEARS
from benchmarks.bench_linear import stored
from benchmarks.timing import best_of_each
from loraplex.engine.device.threads import prepare_environment, set_threads
from loraplex.lora.apply.apply import add_lora
from loraplex.lora.apply.batch import RANKS_PER_PAGE, LoraBatch, PageTable

SHAPES = {
    "q_proj": (896, 896), "k_proj": (896, 128), "v_proj": (896, 128), "o_proj": (896, 896),
    "gate_proj": (896, 4864), "up_proj": (896, 4864), "down_proj": (4864, 896),
}  # fmt: skip
GROUPS = {
    "qkv": ("q_proj", "k_proj", "v_proj"), "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"), "down": ("down_proj",),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("tokens", 16), ("adapters", 8), ("rank", 16), ("layers", 4), ("rounds", 50)):
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    prepare_environment()
    print(set_threads())
    measure(arguments.tokens, arguments.adapters, arguments.rank, arguments.layers, arguments.rounds)


def measure(tokens: int, adapters: int, rank: int, layers: int, rounds: int) -> dict[str, float]:
    """Seconds of the seven linears of one layer: `base`, `lora` by our kernels, `gather` by the usual way."""
    table = make_table(adapters, rank, layers)
    batch = LoraBatch.build(table, (torch.arange(tokens) % adapters).to(torch.int32), torch.ones(tokens))
    assert batch is not None
    totals = dict.fromkeys(("base", "lora", "gather"), 0.0)
    for group, kinds in GROUPS.items():
        outputs, inputs = LINEARS[group]
        methods = [stored(torch.randn(outputs, inputs) / inputs**0.5) for _ in range(layers)]
        x, y = torch.randn(tokens, inputs), torch.zeros(tokens, outputs)
        functions: dict[str, Callable[[int], object]] = {
            "base": lambda index, methods=methods, x=x: methods[index % layers].apply(x),  # type: ignore[misc]
            "lora": lambda index, x=x, y=y, kinds=kinds: add_lora(y, x, batch, index % layers, kinds),  # type: ignore[misc]
            "gather": gather(table, batch, x, y, kinds, rank),
        }
        seconds = best_of_each(functions, rounds)
        print(group, *(f"{name} {value * 1e6:.0f} us" for name, value in seconds.items()), sep="   ", flush=True)
        totals = {name: totals[name] + seconds[name] for name in totals}
    lora, gathered = (totals[name] / totals["base"] for name in ("lora", "gather"))
    print(f"LoRA adds {lora:.1%} to the base linears; gather and bmm {gathered:.1%}")
    return totals


def gather(
    table: PageTable, batch: LoraBatch, x: torch.Tensor, y: torch.Tensor, kinds: tuple[str, ...], rank: int
) -> Callable[[int], object]:
    """The same sum from plain [slots, rank, in] and [slots, rank, out] tensors."""
    slots = int(batch.segment_slots.max()) + 1
    weights = [[torch.randn(slots, rank, size).bfloat16() for size in SHAPES[kind]] for kind in kinds]
    token_slot = batch.token_slot[:, 0].long()

    def run(index: int) -> None:
        first = 0
        for a, b in weights:
            shrunk = torch.bmm(a[token_slot].float(), x[:, :, None])
            y[:, first : first + b.shape[2]] += torch.bmm(shrunk.transpose(1, 2), b[token_slot].float())[:, 0]
            first += b.shape[2]

    return run


def make_table(adapters: int, rank: int, layers: int) -> PageTable:
    pages = -(-rank // RANKS_PER_PAGE)
    offset = torch.zeros(adapters, len(SHAPES), pages, dtype=torch.int64)
    position = 0
    for slot in range(adapters):
        for index, kind in enumerate(SHAPES):
            for page in range(pages):
                offset[slot, index, page] = position
                position += layers * RANKS_PER_PAGE * sum(SHAPES[kind])
    shape = (adapters, len(SHAPES), layers)
    arena = torch.from_numpy(np.empty(position, np.uint16)).view(torch.bfloat16).copy_(torch.randn(position) / 30)
    return PageTable(arena, offset, torch.full(shape, rank, dtype=torch.int32), torch.ones(shape), SHAPES)


if __name__ == "__main__":
    main()
