"""What quantizing with AWQ takes while it lasts: less than the quantized weights, one layer as it is stored, and what
the calibration text takes.

Measured in a process of its own whose memory is limited to just that, as test_load_memory.py does it.
"""

import gc
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest
import torch

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.quantize.options import QuantizeOptions
from loraplex.engine.quantize.run import quantize_checkpoint
from loraplex.quant.calibrate.awq import CHUNK_WEIGHTS
from tests.checkpoints import make_checkpoint

from ..model.test_load_memory import ROOT, _layer_bytes, _writable

TOKENS: Final = 128
SLACK: Final = 4 << 20
"""Of the interpreter, the tokenizer, torch's threads."""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit what a process writes to")
def test_awq_takes_less_than_the_quantized_weights_and_a_layer(tmp_path: Path) -> None:
    """A layer has 16 MB, and would have 32 MB in float32."""
    sizes = {"hidden_size": 768, "intermediate_size": 2816, "num_attention_heads": 12, "num_key_value_heads": 4}
    base = make_checkpoint(tmp_path / "base", dtype=torch.bfloat16, max_position_embeddings=512, **sizes)
    call = f"print(quantizes_within({str(base)!r}, layers=[-1, 1]))"
    code = f"from tests.engine.quantize.test_memory import quantizes_within; {call}"
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "524288", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "[False, True]\n", done.stderr


def quantizes_within(base: str, layers: list[int]) -> list[bool]:
    """Whether `base` is quantized in its quantized size, what the text takes and so many stored layers more."""
    quantized = _quantize(base)  # what is made once is there afterwards
    mapped = sum(file.stat().st_size for file in Path(base).glob("*.safetensors"))  # counts, and takes no memory
    return [_is_enough(base, mapped + quantized + _text_bytes(base) + more * _layer_bytes(base)) for more in layers]


def _is_enough(base: str, memory: int) -> bool:
    gc.collect()
    resource.setrlimit(resource.RLIMIT_DATA, (_writable() + memory + SLACK, resource.RLIM_INFINITY))
    try:
        return _quantize(base) > 0
    except (MemoryError, RuntimeError) as error:
        assert isinstance(error, MemoryError) or "can't allocate memory" in str(error)
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _quantize(base: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        options = QuantizeOptions(scheme="awq", calibration_tokens=TOKENS)
        return quantize_checkpoint(Path(base), Path(folder) / "out", options).bytes_after


def _text_bytes(base: str) -> int:
    """Hidden states, what the four inputs of a layer saw of the text, what it makes of a batch of it, and the floats of
    the weights that are compared at a time."""
    config = ModelConfig.from_folder(Path(base))
    hidden, inner = config.hidden_size, config.intermediate_size
    streams, seen, made = 2 * TOKENS * hidden, TOKENS * (3 * hidden + inner), TOKENS * (4 * hidden + 4 * inner)
    return 4 * (streams + seen + made + 8 * CHUNK_WEIGHTS)
