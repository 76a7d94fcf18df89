"""Quantizing at load: what is stored, what is refused, and the engine on top."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from loraplex import LLM, SamplingParams
from loraplex.quant.weights.online import OnlineQuantization
from loraplex.quant.weights.weights import Float8Weight, IntegerWeight
from tests.checkpoints import make_adapter, make_checkpoint


@pytest.mark.parametrize("inputs,groups", [(256, 2), (192, 3), (96, 3), (40, 1)])
def test_four_bits_in_the_longest_group_that_divides(inputs: int, groups: int) -> None:
    weight = OnlineQuantization("int4").linear(torch.randn(6, inputs))
    assert isinstance(weight, IntegerWeight) and weight.scales.shape == (6, groups)


@pytest.mark.parametrize("scheme,most", [("int4", 0.15), ("int8", 0.01), ("fp8", 0.04)])
def test_rounded_to_nearest(scheme: str, most: float) -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 128)
    rounded = OnlineQuantization(scheme).linear(weight)
    assert isinstance(rounded, IntegerWeight | Float8Weight)
    assert (rounded.dequantized() - weight).norm() < most * weight.norm()


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="quantization 'int3' is not supported; use none, int4, int8, fp8, awq"):
        OnlineQuantization("int3")
    with pytest.raises(ValueError, match="head_quantization 'fp8' is not supported; use none, int8"):
        OnlineQuantization("none", "fp8")
    quantized = OnlineQuantization("int8").linear(torch.randn(4, 32))
    with pytest.raises(ValueError, match="quantized already; serve it without quantization int4"):
        OnlineQuantization("int4").linear(quantized)


@pytest.mark.parametrize("linears,head", [("int4", "none"), ("int8", "none"), ("fp8", "none"), ("none", "int8")])
def test_a_weight_that_holds_no_number_is_named(tmp_path: Path, linears: str, head: str) -> None:
    base = make_checkpoint(tmp_path / "base", "llama")
    name = "model.layers.1.mlp.up_proj.weight" if head == "none" else "lm_head.weight"
    tensors = load_file(base / "model.safetensors")
    tensors[name][3, 5] = float("nan")
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=f"^{name} holds NaN or infinity in 1 of "):
        LLM(base, quantization=linears, head_quantization=head, num_threads=1)


def test_the_engine_serves_adapters_on_it(tmp_path: Path) -> None:
    """Eight bits everywhere: close to the float model, for the base and for an adapter, and said in the facts."""
    base = make_checkpoint(tmp_path / "base", "qwen2")
    adapter = make_adapter(tmp_path / "adapter", base)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    found = {}
    for quantization, head in (("none", "none"), ("int8", "int8")):
        settings = {"quantization": quantization, "head_quantization": head, "dtype": "float32"}
        with LLM(base, adapters={"some": adapter}, **settings) as llm:
            for name in (None, "some"):
                [answer] = llm.generate([list(range(5, 40))], params, adapter=name)
                found[quantization, name] = answer.outputs[0].logprobs[0]
            assert llm.info.quantization == ("int8 rounded at load, head int8" if head == "int8" else "")
    for name in (None, "some"):
        for token, expected in found["none", name].items():
            if token in found["int8", name]:
                assert found["int8", name][token].logprob == pytest.approx(expected.logprob, abs=0.15)
        assert len(found["none", name].keys() & found["int8", name].keys()) >= 4
