"""What loading takes while it lasts: the weights as they are served, and less than one float layer besides."""

import sys
from pathlib import Path

import pytest
import torch

from tests.checkpoints import make_checkpoint

from ..memory_limit import print_alone


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers of 31 MB and a head of 67 MB in bfloat16."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 4}
    return make_checkpoint(tmp_path_factory.mktemp("base"), dtype=torch.bfloat16, vocab_size=32768, **sizes)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit what a process writes to")
@pytest.mark.parametrize("linears,head", [("none", "none"), ("int4", "int8"), ("int8", "int8"), ("fp8", "none")])
def test_loading_takes_the_served_weights_and_less_than_a_layer(base: Path, linears: str, head: str) -> None:
    call = f"loads_within({str(base)!r}, {linears!r}, {head!r}, layers=[-1, 1])"
    assert print_alone("tests.engine.model.load_within", call, mapped_from=1 << 16) == "[False, True]\n"
