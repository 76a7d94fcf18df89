"""Quantizing the demo's base and KV cache costs no adapter more than one exact answer in a hundred, beside the bfloat16
weights it was trained on, in float32: all adapters in one batch, every answer greedy.
"""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.demo_quality import DEMO, FLOAT8_CACHE, LARGEST_LOSS, exact_answers, write_awq

QUESTIONS = 200
"""For each adapter."""
SMALL: dict[str, Any] = {"num_kv_blocks": 600, "adapter_memory": 16 << 20, "num_threads": 1}


@pytest.fixture(scope="module")
def plain() -> dict[str, float]:
    return exact_answers(DEMO / "model", QUESTIONS, dtype="float32", **SMALL)


@pytest.mark.parametrize("form", ["fp8", "awq"])
def test_an_adapter_loses_a_point_at_most(form: str, plain: dict[str, float], tmp_path: Path) -> None:
    model, settings = DEMO / "model", SMALL | FLOAT8_CACHE
    if form == "awq":
        model = write_awq(tmp_path / "awq", calibration_tokens=2048)
    else:
        settings["quantization"] = form
    found = exact_answers(model, QUESTIONS, **settings)
    assert len(plain) == 7 and min(plain.values()) >= 95
    assert max(plain[name] - found[name] for name in plain) <= LARGEST_LOSS, (plain, found)
