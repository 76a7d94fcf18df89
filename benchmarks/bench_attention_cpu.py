"""Paged attention on the CPU beside torch's own, taking turns in one process.

`python -m benchmarks.bench_attention_cpu` prints the milliseconds of all layers of a model of 0.5B dimensions (24 times
a layer's best; 14 heads, 2 KV heads of 64), and the ratio. `--cache-dtypes` compares instead the dtypes of the KV cache
over 16 sequences that decode at 4k tokens: each dtype's best and median of all calls, beside bfloat16.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

from loraplex.engine.device.threads import prepare_environment, set_threads

prepare_environment()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from loraplex.engine.attention.backend import CacheShape  # noqa: E402
from loraplex.engine.attention.cpu import CpuAttention  # noqa: E402
from loraplex.engine.attention.layer import LayerAttention  # noqa: E402
from loraplex.engine.batch import Batch  # noqa: E402

LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK = 24, 14, 2, 64, 16
Call = Callable[[int], torch.Tensor]


def best_of(calls: dict[str, Call], rounds: int = 7) -> dict[str, float]:
    """LAYERS times the best seconds of each call."""
    return {name: LAYERS * min(seconds) for name, seconds in timed(calls, LAYERS, rounds).items()}


def timed(calls: dict[str, Call], layers: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of every call; they take turns layer by layer, so that a busy machine slows all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for layer in range(layers):
            for name, call in calls.items():
                start = time.perf_counter()
                call(layer)
                seconds[name].append(time.perf_counter() - start)
    return seconds


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


def fill(
    sequences: int, cached: int, new: int, cache_dtype: torch.dtype, layers: int = LAYERS
) -> tuple[CpuAttention, Batch, Batch]:
    """A backend, the batch of its new tokens, and that of all of them."""
    attention = LayerAttention(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5)
    blocks = sequences * -(-(cached + new) // BLOCK)
    shape = CacheShape(layers=(attention,) * layers, num_blocks=blocks, block_size=BLOCK, cache_dtype=cache_dtype)
    backend = CpuAttention(shape)
    everything, batch = make_batch(sequences, 0, cached + new), make_batch(sequences, cached, new)
    batch.block_tables = everything.block_tables
    key, value = torch.randn(2, sequences * (cached + new), KV_HEADS, HEAD_DIM)
    for layer in range(layers):
        backend.write(layer, key, value, everything)
    return backend, batch, everything


def compare(sequences: int, cached: int, new: int, cache_dtype: torch.dtype) -> None:
    backend, batch, everything = fill(sequences, cached, new, cache_dtype)
    blocks = sequences * -(-(cached + new) // BLOCK)
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


def time_dtypes(sequences: int = 16, cached: int = 4095, layers: int = 4, rounds: int = 25) -> dict[str, list[float]]:
    """Seconds of every call of one layer's decode, by the dtype of the cache: keys and values written, all read."""
    query = torch.randn(sequences, HEADS, HEAD_DIM)
    key, value = torch.randn(2, sequences, KV_HEADS, HEAD_DIM)
    dtypes = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
    filled = {str(dtype)[6:]: fill(sequences, cached, 1, dtype, layers)[:2] for dtype in dtypes}

    def decode(backend: CpuAttention, batch: Batch, layer: int) -> torch.Tensor:
        backend.write(layer, key, value, batch)
        return backend.attend(layer, query, batch)

    calls: dict[str, Call] = {name: partial(decode, *made) for name, made in filled.items()}
    return timed(calls, layers, rounds)


def compare_dtypes() -> None:
    times = time_dtypes()
    bfloat16 = times["bfloat16"]
    for name, seconds in times.items():
        best, median = min(seconds), statistics.median(seconds)
        ratios = f"{min(bfloat16) / best:5.2f}x best {statistics.median(bfloat16) / median:5.2f}x median"
        print(f"16 sequences at 4096, {name:13}  {best * 1e3:7.2f} ms {median * 1e3:7.2f} ms  {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache-dtypes", action="store_true", help="compare the dtypes of the KV cache alone")
    only_dtypes = parser.parse_args().cache_dtypes
    count, sharing = set_threads()
    print(f"{count} threads; {sharing}")
    if only_dtypes:
        compare_dtypes()
        return
    for cache_dtype in (torch.bfloat16, torch.float32):
        for sequences, cached, new in ((1, 100, 1), (1, 1023, 1), (16, 1023, 1), (1, 0, 128), (1, 0, 512), (4, 0, 128)):
            compare(sequences, cached, new, cache_dtype)


if __name__ == "__main__":
    main()
