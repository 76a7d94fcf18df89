"""awq_checkpoint: the base as `loraplex quantize --scheme awq` writes it, made at the first start and kept.

Adapters still see the float base's signature.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loraplex.quant.config.online_words import AWQ
from loraplex.quant.weights.online import GROUPS, OnlineQuantization

from ..model.config import ModelConfig
from ..model.identity.fingerprint import checkpoint_identity
from ..quantize.options import VERSION, QuantizeOptions
from ..quantize.run import quantize_checkpoint, quantized_bytes
from ..quantize.seal import is_sealed, seal
from .weights_cache import WeightsCache, entry_name

TELLINGS: Final = 10
"""How often the start-up says how far it is."""

logger = logging.getLogger(__name__)

Tell = Callable[[str, float], None]
"""Called with what has been done, in words, and its seconds."""


def awq_checkpoint(folder: Path, config: ModelConfig, cache: WeightsCache | None, tell: Tell) -> Path:
    """The quantized checkpoint of the float one in `folder`. Waits while another process writes to the cache.

    ValueError for a checkpoint that cannot be quantized, or no place to keep the result.
    """
    if config.quantization is not None:
        OnlineQuantization(AWQ).refuse_quantized()
    if cache is None:
        raise ValueError(
            "quantization awq keeps the quantized weights for the next start: "
            "give weights_cache_bytes more than 0 (in Python, weights_cache a folder)"
        )
    options = QuantizeOptions(scheme=AWQ, group_size=_group_size(config))
    name = entry_name("awq", f"{checkpoint_identity(folder)} {options} {VERSION}")
    if _use(cache, name):
        return cache.path(name)
    with cache.turn(wait=True):
        if not _use(cache, name):  # else whoever was waited for has made it
            if cache.discard(name):
                logger.warning("%s is not as it was written, it is quantized again", cache.path(name))
            cache.make_room(quantized_bytes(folder, options))  # where there is none, _quantize says so
            _quantize(folder, cache.path(name), options, tell)
            _seal(cache.path(name))
            cache.use(name)
            cache.trim()
    return cache.path(name)


def _seal(checkpoint: Path) -> None:
    try:
        seal(checkpoint)
    except OSError as error:
        logger.warning("%s cannot be sealed, the next start quantizes again: %s", checkpoint, error)


def _use(cache: WeightsCache, name: str) -> bool:
    """Whether it is there and whole; then it is in use from now on."""
    return is_sealed(cache.path(name)) and cache.use(name) is not None


def _quantize(folder: Path, output: Path, options: QuantizeOptions, tell: Tell) -> None:
    started = time.perf_counter()
    progress = _Progress(tell)
    report = quantize_checkpoint(folder, output, options, progress.layers)
    before, after = report.perplexity_before, report.perplexity_after
    words = f"awq: perplexity {before:.3f} -> {after:.3f} on held-out text"
    if report.unseen:
        words += f"; {len(report.unseen):,} linears of experts that too few tokens came to are rounded to nearest"
    tell(words, time.perf_counter() - started - progress.told)


@dataclass(slots=True)
class _Progress:
    tell: Tell
    told: float = 0.0
    """Seconds of the layers so far."""
    started: float = field(default_factory=time.perf_counter)

    def layers(self, done: int, total: int) -> None:
        """As quantize_checkpoint calls it."""
        if done * TELLINGS // total == (done - 1) * TELLINGS // total:
            return
        seconds = time.perf_counter() - self.started - self.told
        self.told += seconds
        words = f"{done} of {total} layers quantized" if done else f"quantizing {total} layers, once for this base"
        self.tell(f"awq: {words}", seconds)


def _group_size(config: ModelConfig) -> int:
    """The longest that divides the inputs of every linear."""
    widths = config.input_widths()
    fitting = [size for size in GROUPS if all(width % size == 0 for width in widths)]
    if not fitting:
        raise ValueError(
            f"awq stores groups of {', '.join(map(str, GROUPS))} inputs, and none of them divides the linears' "
            f"{', '.join(map(str, sorted(widths)))}; use quantization int8 or int4"
        )
    return fitting[0]
