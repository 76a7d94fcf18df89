"""What loading takes while it lasts: the weights as they are served, and less than one float layer besides.

Measured in a process of its own whose memory is limited to just that: Linux refuses it any more (RLIMIT_DATA), so
nothing that is taken for a moment is missed.
"""

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.decoder import Decoder, DecoderLoader
from loraplex.engine.model.loader import Checkpoint
from loraplex.quant.choose import choose_scheme
from loraplex.quant.online import OnlineQuantization
from tests.checkpoints import make_checkpoint

SLACK = 4 << 20
"""For norms, rotary tables and the interpreter."""
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers of 31 MB and a head of 67 MB in bfloat16."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 4}
    return make_checkpoint(tmp_path_factory.mktemp("base"), dtype=torch.bfloat16, vocab_size=32768, **sizes)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit what a process writes to")
@pytest.mark.parametrize("linears,head", [("none", "none"), ("int4", "int8"), ("int8", "int8"), ("fp8", "none")])
def test_loading_takes_the_served_weights_and_less_than_a_layer(base: Path, linears: str, head: str) -> None:
    call = f"print(loads_within({str(base)!r}, {linears!r}, {head!r}, layers=[-1, 1]))"
    code = f"from tests.engine.model.test_load_memory import loads_within; {call}"
    # Every array gets pages of its own, which go back when it is freed.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "[False, True]\n", done.stderr


def loads_within(base: str, linears: str, head: str, layers: list[int]) -> list[bool]:
    """Whether `base` loads in its served size and so many float layers more."""
    checkpoint = Checkpoint(Path(base))  # its mapped files count from here on
    served = _load(checkpoint, linears, head).weight_bytes()  # and all that is made once is there afterwards
    return [_is_enough(served + more * _layer_bytes(base), checkpoint, linears, head) for more in layers]


def _is_enough(memory: int, checkpoint: Checkpoint, linears: str, head: str) -> bool:
    gc.collect()
    resource.setrlimit(resource.RLIMIT_DATA, (_writable() + memory + SLACK, resource.RLIM_INFINITY))
    try:
        return bool(_load(checkpoint, linears, head).layers)
    except (MemoryError, RuntimeError) as error:
        assert isinstance(error, MemoryError) or "can't allocate memory" in str(error)
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _load(checkpoint: Checkpoint, linears: str, head: str) -> Decoder:
    scheme, online = choose_scheme(torch.device("cpu"), torch.bfloat16), OnlineQuantization(linears, head)
    config = ModelConfig.from_folder(checkpoint.folder)
    return DecoderLoader(config, checkpoint, scheme, torch.bfloat16, online).load(64)


def _layer_bytes(base: str) -> int:
    return sum(2 * inputs * outputs for inputs, outputs in ModelConfig.from_folder(base).linear_shapes().values())


def _writable() -> int:
    """Bytes of memory that this process may write to."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == "VmData:")
