"""What `loraplex quantize` writes, served: the log-probabilities of transformers with compressed-tensors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CompressedTensorsConfig
from transformers.models.auto import AutoModelForCausalLM

from loraplex import LLM, SamplingParams
from loraplex.engine.quantize.options import QuantizeOptions
from loraplex.engine.quantize.run import quantize_checkpoint
from tests.checkpoints import make_adapter, make_checkpoint

CASES: dict[str, dict[str, Any]] = {
    "awq": {"scheme": "awq", "group_size": 32},
    "awq-folded": {"scheme": "awq", "group_size": 32, "fold": True},
    "gptq": {"scheme": "gptq", "group_size": 32},
    "int8": {"scheme": "int8"},
    "fp8": {"scheme": "fp8"},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), "qwen2")


@pytest.mark.parametrize("case", CASES)
def test_the_engine_answers_as_another_reader_does(tmp_path: Path, base: Path, case: str) -> None:
    quantize_checkpoint(base, tmp_path / "out", QuantizeOptions(calibration_tokens=1536, **CASES[case]))
    settings = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if "awq" in case else {}
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32, **settings).eval()
    prompt = list(range(5, 25))
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    with LLM(tmp_path / "out") as llm:
        [answer] = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=1, logprobs=5))
        found = answer.outputs[0].logprobs[0]
        assert set(found) >= set(expected.topk(3).indices.tolist())
        for token, logprob in found.items():
            assert logprob.logprob == pytest.approx(expected[token].item(), rel=1e-3), token


def test_a_folded_base_takes_no_adapters(tmp_path: Path, base: Path) -> None:
    quantize_checkpoint(base, tmp_path / "out", QuantizeOptions(calibration_tokens=1536, **CASES["awq-folded"]))
    adapter = make_adapter(tmp_path / "adapter", base)
    with pytest.raises(ValueError, match="quantized with --fold"), LLM(tmp_path / "out", adapters={"some": adapter}):
        raise AssertionError("it was served")
