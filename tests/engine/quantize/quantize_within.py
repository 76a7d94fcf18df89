"""Whether a model is quantized in so much memory, for a process of its own (memory_limit.py)."""

import tempfile
from pathlib import Path
from typing import Final

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.description.feed_forward import ExpertsSpec
from loraplex.engine.quantize.options import QuantizeOptions
from loraplex.engine.quantize.run import quantize_checkpoint
from loraplex.quant.calibrate.awq import CHUNK_WEIGHTS

from ..memory_limit import is_enough, layer_bytes

TOKENS: Final = 128


def quantizes_within(base: str, layers: list[int]) -> list[bool]:
    """Whether `base` is quantized in its quantized size, what the text takes and so many stored layers more."""
    quantized = _quantize(base)  # what is made once is there afterwards
    mapped = sum(file.stat().st_size for file in Path(base).glob("*.safetensors"))  # counts, and takes no memory
    given = mapped + quantized + _text_bytes(base)
    return [is_enough(given + more * layer_bytes(base), lambda: _quantize(base)) for more in layers]


def _quantize(base: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        options = QuantizeOptions(scheme="awq", calibration_tokens=TOKENS)
        return quantize_checkpoint(Path(base), Path(folder) / "out", options).bytes_after


def _text_bytes(base: str) -> int:
    """Hidden states, what the inputs of a layer saw of the text (four, of a mixture those of one expert and what all of
    them read), what it makes of a batch of it, and the floats of the weights that are compared at a time."""
    config = ModelConfig.from_folder(Path(base))
    hidden, feed_forward = config.hidden_size, config.spec.layers[0].feed_forward
    is_mixture = isinstance(feed_forward, ExpertsSpec)
    inner = feed_forward.expert.size if isinstance(feed_forward, ExpertsSpec) else feed_forward.size
    streams, made = 2 * TOKENS * hidden, TOKENS * (4 * hidden + 4 * inner)
    seen = TOKENS * ((4 if is_mixture else 3) * hidden + inner)
    return 4 * (streams + seen + made + 8 * CHUNK_WEIGHTS)
