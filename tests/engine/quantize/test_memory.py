"""What quantizing with AWQ takes while it lasts: less than the quantized weights, one layer as it is stored, and what
the calibration text takes."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import MixtralConfig

from tests.checkpoints import make_checkpoint
from tests.engine.model.families.parity import TOKENS, make_base

from ..memory_limit import print_alone


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit what a process writes to")
def test_awq_takes_less_than_the_quantized_weights_and_a_layer(tmp_path: Path) -> None:
    """A layer has 16 MB, and would have 32 MB in float32."""
    sizes = {"hidden_size": 768, "intermediate_size": 2816, "num_attention_heads": 12, "num_key_value_heads": 4}
    base = make_checkpoint(tmp_path / "base", dtype=torch.bfloat16, max_position_embeddings=512, **sizes)
    call = f"quantizes_within({str(base)!r}, layers=[-1, 1])"
    assert print_alone("tests.engine.quantize.quantize_within", call, mapped_from=1 << 19) == "[False, True]\n"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit what a process writes to")
def test_awq_of_a_mixture_takes_no_more_for_its_experts(tmp_path: Path) -> None:
    """A layer of 16 experts has 29 MB in two bytes each."""
    sizes = {"hidden_size": 512, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}
    config = MixtralConfig(**TOKENS | sizes, num_hidden_layers=2, max_position_embeddings=512, num_local_experts=16)
    base = make_base(tmp_path / "base", config)
    call = f"quantizes_within({str(base)!r}, layers=[-1, 1])"
    assert print_alone("tests.engine.quantize.quantize_within", call, mapped_from=1 << 19) == "[False, True]\n"
