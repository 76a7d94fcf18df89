"""Paged attention on the CPU beside torch's own, taking turns in one process.

`python -m benchmarks.bench_attention_cpu` prints the milliseconds of all layers of a model of 0.5B dimensions (24 times
a layer's best; 14 heads, 2 KV heads of 64), and the ratio.
"""

import time
from collections.abc import Callable

from loraplex.engine.threads import prepare_environment, set_threads

prepare_environment()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from loraplex.engine.attention.cpu import CpuAttention  # noqa: E402
from loraplex.engine.batch import Batch  # noqa: E402

LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK = 24, 14, 2, 64, 16
Call = Callable[[int], torch.Tensor]


def best_of(calls: dict[str, Call], rounds: int = 7) -> dict[str, float]:
    """LAYERS times the best seconds of each call; the calls take turns, so that a busy machine slows all alike."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            for layer in range(LAYERS):
                start = time.perf_counter()
                call(layer)
                best[name] = min(best[name], time.perf_counter() - start)
    return {name: LAYERS * seconds for name, seconds in best.items()}


def make_batch(sequences: int, cached: int, new: int) -> Batch:
    blocks = -(-(cached + new) // BLOCK)
    tables = torch.randperm(sequences * blocks).view(sequences, blocks)
    positions = torch.arange(cached, cached + new).repeat(sequences)
    rows = torch.arange(sequences).repeat_interleave(new)
    return Batch(
        token_ids=positions,
        positions=positions,
        slot_mapping=tables[rows, positions // BLOCK] * BLOCK + positions % BLOCK,
        query_starts=torch.arange(0, sequences * new + 1, new, dtype=torch.int32),
        context_lengths=torch.full((sequences,), cached + new, dtype=torch.int32),
        block_tables=tables.to(torch.int32),
        sample_rows=torch.arange(sequences),
    )


def compare(sequences: int, cached: int, new: int, cache_dtype: torch.dtype) -> None:
    blocks = sequences * -(-(cached + new) // BLOCK)
    backend = CpuAttention(
        num_layers=LAYERS,
        num_blocks=blocks,
        block_size=BLOCK,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        cache_dtype=cache_dtype,
        scale=HEAD_DIM**-0.5,
        sliding_window=[None] * LAYERS,
    )
    backend.warm_up(torch.float32)
    everything, batch = make_batch(sequences, 0, cached + new), make_batch(sequences, cached, new)
    batch.block_tables = everything.block_tables
    key, value = torch.randn(2, sequences * (cached + new), KV_HEADS, HEAD_DIM)
    for layer in range(LAYERS):
        backend.write(layer, key, value, everything)
    query = torch.randn(sequences * new, HEADS, HEAD_DIM)
    flat = torch.randn(2, LAYERS, blocks * BLOCK, KV_HEADS, HEAD_DIM).to(cache_dtype)
    gather = everything.slot_mapping.view(sequences, -1)

    def torch_attend(layer: int) -> torch.Tensor:
        keys, values = flat[:, layer, gather].to(torch.float32).transpose(2, 3)
        queries = query.view(sequences, new, HEADS, HEAD_DIM).transpose(1, 2)
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=new > 1, enable_gqa=True)

    best = best_of({"paged": lambda layer: backend.attend(layer, query, batch), "torch": torch_attend})
    times = "  ".join(f"{name} {seconds * 1e3:8.2f} ms" for name, seconds in best.items())
    shape = f"{sequences:3} sequences, {cached:5} cached, {new:4} new, {str(cache_dtype)[6:]:9}"
    print(f"{shape}  {times}  {best['torch'] / best['paged']:5.2f}x")


def main() -> None:
    count, sharing = set_threads()
    print(f"{count} threads; {sharing}")
    for cache_dtype in (torch.bfloat16, torch.float32):
        for sequences, cached, new in ((1, 100, 1), (1, 1023, 1), (16, 1023, 1), (1, 0, 128), (1, 0, 512), (4, 0, 128)):
            compare(sequences, cached, new, cache_dtype)


if __name__ == "__main__":
    main()
