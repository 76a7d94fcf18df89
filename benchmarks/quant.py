"""`make bench-quant`: quantized weights and KV caches beside the own bfloat16, a random checkpoint of 0.5B dimensions.

Ratios measured in one run, all sides in turn, medians.

    python -m benchmarks.quant [--rounds 5] [--only NAME ...] [--tiny]
"""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

from loraplex.engine.device.threads import prepare_environment

prepare_environment()

import torch  # noqa: E402

from loraplex.engine.model.config import ModelConfig  # noqa: E402
from loraplex.engine.startup.kv_cache_size import block_bytes  # noqa: E402

from .awq_checkpoint import awq_checkpoint, folded_awq_checkpoint  # noqa: E402
from .bench_attention_cpu import BLOCK, time_dtypes  # noqa: E402
from .checkpoints import Dimensions, base_checkpoint  # noqa: E402
from .command_line import Part, run_parts  # noqa: E402
from .demo_quality import demo_quality  # noqa: E402
from .engine import MeasuredEngine  # noqa: E402
from .report import Row  # noqa: E402
from .scale import Scale, medians  # noqa: E402

DECODE_STEPS = 16
FORMS: dict[str, dict[str, str]] = {
    "bf16": {},
    "fp16": {"dtype": "float16"},
    "int4": {"quantization": "int4"},
    "int4, int8 head": {"quantization": "int4", "head_quantization": "int8"},
    "int8, int8 head": {"quantization": "int8", "head_quantization": "int8"},
    "fp8": {"quantization": "fp8"},
    "awq": {"dtype": "bfloat16"},
    "awq, inputs divided": {},
    "awq, fp16": {},
    "awq, fp16, int8 head": {"head_quantization": "int8"},
}
"""int4 has what AWQ stores, groups of 128 with zero points, beside the own head and activations of bfloat16; awq is
what AutoAWQ writes, and fp16 the dtype in which it does."""
CHECKPOINTS: dict[str, Callable[[Dimensions], Path]] = {
    "awq": awq_checkpoint,
    "awq, inputs divided": folded_awq_checkpoint,
    "awq, fp16": awq_checkpoint,
    "awq, fp16, int8 head": awq_checkpoint,
}
"""Of the forms that are not rounded as they are loaded: AutoAWQ's, and what `--quantization awq` makes."""
GOALS = {
    "int4": 0.55,
    "int4, int8 head": 0.40,
    "int8, int8 head": 0.62,
    "awq": 0.55,
    "awq, inputs divided": 0.55,
    "awq, fp16": 0.55,
    "awq, fp16, int8 head": 0.40,
}
"""Time of a token of one stream over that of bf16."""
LEAST_SPEED = 0.95


def weights(scale: Scale) -> list[Row]:
    engines = {
        name: MeasuredEngine(CHECKPOINTS.get(name, base_checkpoint)(scale.dimensions), {}, 1 << 20, **settings)
        for name, settings in FORMS.items()
    }
    rows = [_bytes_row(name, engine, scale.dimensions) for name, engine in engines.items()]
    for what, measure in _MEASURES.items():
        rates = medians({name: partial(measure, engine) for name, engine in engines.items()}, scale.rounds)
        rows += _speed_rows(what, rates)
    for engine in engines.values():
        engine.close()
    return rows


_MEASURES: dict[str, Callable[[MeasuredEngine], float]] = {
    "one stream": lambda engine: engine.decode_rate([None], 16, DECODE_STEPS),
    "16 streams": lambda engine: engine.decode_rate([None] * 16, 16, DECODE_STEPS),
    "prefill 4 x 512": lambda engine: engine.prefill_rate([None] * 4, 512),
}


def _speed_rows(what: str, rates: dict[str, float]) -> list[Row]:
    rows = [Row(f"{what}: bf16", rates["bf16"], "tokens/s")]
    for name in list(FORMS)[1:]:
        quicker = rates[name] / rates["bf16"]
        if what == "one stream":
            rows.append(
                Row(f"{what}, {name}: time of a token / bf16", 1 / quicker, "x", GOALS.get(name), at_least=False)
            )
            continue
        goal = None if name == "fp16" else LEAST_SPEED
        rows.append(Row(f"{what}, {name}: speed / bf16", quicker, "x", goal))
        if name.startswith("awq, fp16"):
            rows.append(Row(f"{what}, {name}: speed / fp16", rates[name] / rates["fp16"], "x"))
    return rows


def _bytes_row(name: str, engine: MeasuredEngine, dimensions: Dimensions) -> Row:
    return Row(f"bytes, {name} / arithmetic", engine.weight_bytes / _arithmetic(name, dimensions), "x", 1.05, False)


def _arithmetic(name: str, dimensions: Dimensions) -> float:
    """Bytes that the format says: codes, 16-bit scales and packed zero points; embedding and head as they are kept."""
    config = ModelConfig.from_folder(base_checkpoint(dimensions))
    linears = sum(linear.inputs * linear.outputs for layer in config.spec.layers for linear in layer.linears())
    embedding = config.vocab_size * config.hidden_size
    four_bits = 0.5 + 2.5 / 128
    a_weight = {"bf16": 2.0, "fp16": 2.0, "int4": four_bits, "awq": four_bits, "int8": 1.0, "fp8": 1.0}[
        name.partition(",")[0]
    ]
    return linears * a_weight + embedding * (2 + (1 if "head" in name else 2))


def kv_cache(scale: Scale) -> list[Row]:
    """Tokens that the same memory holds, and what a decode step does with keys and values: it writes and reads them."""
    model = ModelConfig.from_folder(base_checkpoint(scale.dimensions))
    ratio = block_bytes(model, BLOCK, torch.bfloat16) / block_bytes(model, BLOCK, torch.float8_e4m3fn)
    cached, layers, rounds = (255, 1, 3) if scale.layers == 1 else (4095, 4, 8 * scale.rounds)
    times = time_dtypes(cached=cached, layers=layers, rounds=rounds)
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    seconds_bf16 = median.pop("bfloat16")
    return [
        Row("KV cache, fp8: tokens that fit / bf16", ratio, "x", 1.9),
        *(
            Row(
                f"KV cache, {name}: attention of 16 x {cached + 1}, speed / bf16",
                seconds_bf16 / seconds,
                "x",
                1.0,
            )
            for name, seconds in median.items()
        ),
    ]


PARTS: dict[str, Part] = {
    "weights": weights,
    "kv": kv_cache,
    "demo": demo_quality,
}

if __name__ == "__main__":
    run_parts(__doc__, "quant", PARTS)
