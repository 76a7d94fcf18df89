"""Quantized checkpoints in the engine, against transformers and peft on the floats that the weights stand for."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loraplex import LLM, SamplingParams
from loraplex.engine.attention.backend import CacheShape
from loraplex.engine.attention.reference import ReferenceAttention
from loraplex.engine.batch import Batch
from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.model.decoder import Decoder
from loraplex.engine.model.decoder_loader import DecoderLoader
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.sampling.sampler import Sampled, Sampler, SampleRow
from loraplex.engine.startup.kv_cache_size import attention_layers
from loraplex.quant.config.config import parse_quantization
from loraplex.quant.config.layouts import IntegerLayout
from loraplex.quant.formats.read import read_weight
from loraplex.quant.formats.specification import Linear
from loraplex.quant.linears.coded import CodedLinear
from loraplex.quant.linears.dequantized import DequantizedLinear
from loraplex.quant.linears.side_by_side import SideBySideLinear
from loraplex.quant.schemes.choose import choose_scheme
from loraplex.quant.weights.weights import IntegerWeight
from loraplex.web.cli.serve.machine_checks import check_compute
from loraplex.web.settings.settings import Settings
from tests.checkpoints import make_adapter, make_ia3, reference_model
from tests.quant.made_checkpoints import CASES, make_quantized, write_config
from tests.quant.made_formats import compressed

IDS = torch.arange(3, 43)
TOLERANCE = 1e-3
"""Of the largest logit: weights are exact, and kernels of integers keep 16 bits of each activation (2e-4 was seen)."""


def load(folder: Path, stored: torch.dtype = torch.float32) -> Decoder:
    config = ModelConfig.from_folder(folder)
    assert config.quantization is not None
    scheme = choose_scheme(torch.device("cpu"), stored, config.quantization)
    return DecoderLoader(config, Checkpoint(folder), scheme, stored).load(64)


@torch.inference_mode()
def logits(folder: Path, decoder: Decoder) -> torch.Tensor:
    config = ModelConfig.from_folder(folder)
    layers = attention_layers(config)
    shape = CacheShape(layers=layers, num_blocks=4, block_size=16, cache_dtype=torch.float32)
    cache = ReferenceAttention(shape)
    index, length = torch.arange(len(IDS)), torch.tensor([len(IDS)], dtype=torch.int32)
    starts, blocks = torch.tensor([0, len(IDS)], dtype=torch.int32), torch.arange(4, dtype=torch.int32)[None]
    return decoder.forward(Batch(IDS, index, index, starts, length, blocks, index), cache)


@torch.inference_mode()
def expected(floats: Path) -> torch.Tensor:
    found: torch.Tensor = reference_model(floats)(input_ids=IDS[None]).logits[0]
    return found


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_floats_that_the_weights_stand_for(name: str, tmp_path: Path) -> None:
    quantized, floats = make_quantized(tmp_path, CASES[name])
    assert error(logits(quantized, load(quantized)), expected(floats)) < TOLERANCE


def test_parts_of_one_group_may_be_stored_in_different_ways(tmp_path: Path) -> None:
    quantized, _ = make_quantized(tmp_path, CASES["mixed"])
    decoder = load(quantized)
    qkv, gate_up = decoder.layers[0].mixer.inputs.method, decoder.layers[1].feed_forward.inputs.method
    assert isinstance(qkv, SideBySideLinear) and isinstance(gate_up, SideBySideLinear)
    assert (qkv.out_features, gate_up.out_features) == ((64, 32, 32), (96, 96))
    columns = torch.cat([qkv.columns(0, 40), qkv.columns(40, 64)])
    config, checkpoint = ModelConfig.from_folder(quantized), Checkpoint(quantized)
    assert torch.equal(columns[:, 64:96].T, checkpoint.tensor("model.layers.0.self_attn.k_proj.weight"))
    assert qkv.bias().shape == (128,) and not qkv.bias().any()
    assert qkv.weight_bytes() == 4 * 64 * 128 + 4 * 128
    assert config.quantization is not None and config.quantization.kv_cache is None


def test_weights_are_kept_in_their_codes_where_kernels_take_them(tmp_path: Path) -> None:
    small, _ = make_quantized(tmp_path / "small", CASES["gptq"])
    large, _ = make_quantized(tmp_path / "large", CASES["awq"])
    kept, expanded = load(small).layers[0].feed_forward.output.method, load(large).layers[0].feed_forward.output.method
    assert isinstance(kept, CodedLinear) and isinstance(expanded, DequantizedLinear)
    assert kept.weight_bytes() < 64 * 96 and expanded.weight_bytes() >= 4 * 64 * 96


def test_runs_of_parts_stored_alike_are_one_method() -> None:
    made = [compressed(4, 8)(np.random.default_rng(seed), 16 + seed, 24) for seed in (0, 1)]
    layout = IntegerLayout(bits=4, group_size=8, one_scale=False, symmetric=True, ordered=False, packed=True)
    integers = [read_weight(layout, Linear("x", *it.weight.shape), it.tensors) for it in made]
    weights, biases = [*integers, torch.randn(5, 24)], [torch.randn(16), None, torch.randn(5)]
    method = choose_scheme(torch.device("cpu"), torch.float32).create_for(weights)
    for part, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        method.load(part, weight, bias)
    method.finish()
    assert method.out_features == (16, 17, 5) and len(method.inner) == 2
    whole, x = torch.cat([made[0].weight, made[1].weight, weights[2]]), torch.randn(3, 24)
    bias = torch.cat([biases[0], torch.zeros(17), biases[2]])
    torch.testing.assert_close(method.apply(x), x @ whole.T + bias, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(method.columns(2, 9), whole[:, 2:9].T)
    torch.testing.assert_close(method.bias(), bias)


def test_quantized_weights_are_not_rounded_to_the_stored_dtype(tmp_path: Path) -> None:
    quantized, floats = make_quantized(tmp_path, CASES["awq"])
    columns = load(quantized, torch.bfloat16).layers[0].feed_forward.output.method.columns(0, 96)
    weight = reference_model(floats).model.layers[0].mlp.down_proj.weight
    torch.testing.assert_close(columns, weight.T, rtol=1e-6, atol=0)


def test_another_device_multiplies_in_the_stored_dtype() -> None:
    weight = IntegerWeight(
        bits=4,
        values=torch.tensor([[0, 15], [8, 7]], dtype=torch.uint8),
        scales=torch.tensor([[0.5], [2.0]]),
        zeros=torch.tensor([[8], [8]], dtype=torch.uint8),
    )
    said = {"quant_method": "awq", "group_size": -1}
    choice = choose_scheme(torch.device("meta"), torch.float32, parse_quantization({"quantization_config": said}))
    assert choice.reason == "awq, int4 per channel, expanded to float32 weights, float32 arithmetic"
    method = choice.create_for([weight, weight])
    method.load(0, weight, None)
    method.load(1, weight, None)
    method.finish()
    y = method.apply(torch.ones(3, 2, device="meta"))
    assert (y.shape, y.dtype, y.device.type) == ((3, 4), torch.float32, "meta")


def test_the_fingerprint_is_that_of_weights_and_quantization(tmp_path: Path) -> None:
    quantized, _ = make_quantized(tmp_path, CASES["gptq"])
    before = base_signature(quantized)
    write_config(quantized, quantization_config=CASES["gptq"].config | {"checkpoint_format": "gptq_v2"})
    after = base_signature(quantized)
    assert before.fingerprint != after.fingerprint and before.modules == after.modules


def test_doctor_says_how_the_weights_are_stored(tmp_path: Path) -> None:
    quantized, floats = make_quantized(tmp_path, CASES["packed4"])
    what = check_compute(Settings(model=str(quantized))).what
    assert "compressed-tensors, int4 in groups of 16 weights, float32 arithmetic" in what
    assert "groups of no multiple of 32 inputs expanded to float32" in what
    assert "float32 weights, float32 arithmetic" in check_compute(Settings(model=str(floats))).what


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_checkpoints_of_short_floats(dtype: torch.dtype, tmp_path: Path) -> None:
    """Norms, embeddings, keys and values are of that dtype; the weights are as exact as ever."""
    case = replace(CASES["awq"], settings={"dtype": dtype})
    quantized, floats = make_quantized(tmp_path, case)
    adapter = make_adapter(tmp_path / "adapter", floats, rank=4, use_dora=True)
    with LLM(quantized, {"it": adapter}, max_model_len=64, num_kv_blocks=8, adapter_memory=8 << 20) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=0, ignore_eos=True)
        outputs = llm.generate([[5, 6, 7, 8]] * 2, params, adapter=[None, "it"], use_tqdm=False)
    for output, folder in zip(outputs, (None, adapter), strict=True):
        tokens, wanted = alone(floats, folder, [5, 6, 7, 8])
        found = output.outputs[0]
        assert found.token_ids == tokens[:1] and found.cumulative_logprob is not None
        assert abs(found.cumulative_logprob - float(wanted[0].log_softmax(0).max())) < 0.05


ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": {"rank": 8},
    "dora": {"rank": 4, "use_dora": True},
    "dora-head": {"rank": 4, "use_dora": True, "kinds": ("lm_head", "q_proj")},
    "saved-head": {"rank": 4, "kinds": ("v_proj",), "modules_to_save": ["lm_head"]},
}
NEW_TOKENS = 6


@pytest.fixture
def logits_seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[tuple[tuple[int, ...], int], torch.Tensor]]:
    """(prompt, position in the output) -> the logits the engine drew from."""
    seen: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}
    sample = Sampler.sample

    def recording(self: Sampler, logits: torch.Tensor, rows: list[SampleRow]) -> Sampled:
        for row, values in zip(rows, logits, strict=True):
            seen[tuple(row.prompt_token_ids), row.position] = values.clone()
        return sample(self, logits, rows)

    monkeypatch.setattr(Sampler, "sample", recording)
    yield seen


@torch.inference_mode()
def alone(floats: Path, adapter: Path | None, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
    """Tokens that transformers and peft generate, and the logits that each was the largest of."""
    model, ids = reference_model(floats, {"it": adapter} if adapter else {}), list(prompt)
    for _ in range(NEW_TOKENS):
        found = model(input_ids=torch.tensor([ids])).logits[0]
        ids.append(int(found[-1].argmax()))
    return ids[len(prompt) :], found[len(prompt) - 1 :]


@pytest.mark.parametrize("name", ["mixed", "gptq-ordered-asymmetric", "fp8-blocks"])
def test_adapters_on_a_quantized_base_equal_peft_on_its_floats(
    name: str, tmp_path: Path, logits_seen: dict[tuple[tuple[int, ...], int], torch.Tensor]
) -> None:
    quantized, floats = make_quantized(tmp_path, CASES[name])
    adapters = {key: make_adapter(tmp_path / key, floats, **settings) for key, settings in ADAPTERS.items()}
    adapters["ia3"] = make_ia3(tmp_path / "ia3", floats)
    names = [None, *adapters]
    prompts = [[3 + number, *range(10, 22 + number)] for number in range(len(names))]
    with LLM(quantized, adapters, max_model_len=64, num_kv_blocks=32, adapter_memory=16 << 20) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
        outputs = llm.generate(prompts, params, adapter=names, use_tqdm=False)
        assert CASES[name].config["quant_method"] in llm.info.quantization
        assert llm.info.quantization in llm.info.compute
    for output, prompt, adapter in zip(outputs, prompts, names, strict=True):
        tokens, wanted = alone(floats, adapters.get(adapter or ""), prompt)
        found = torch.stack([logits_seen[tuple(prompt), position] for position in range(NEW_TOKENS)])
        assert error(found, wanted) < TOLERANCE, adapter
        assert output.outputs[0].token_ids == tokens, adapter
