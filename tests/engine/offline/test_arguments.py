"""Keyword arguments in vLLM's spelling: what they become, and which are refused in words."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from loraplex import LLM, EngineArgs
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.vllm_arguments import ARGUMENTS, OWN, RENAMED, agreed_quantization
from loraplex.quant.config.config import OneLayout, QuantizationConfig
from tests.checkpoints import make_checkpoint

from ..pooling.classifiers import make_classifier


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"))


def test_no_name_has_two_meanings() -> None:
    groups = [OWN, frozenset(ARGUMENTS), frozenset(RENAMED)]
    assert sum(map(len, groups)) == len(frozenset().union(*groups))


@pytest.mark.parametrize(
    ("given", "field", "kept"),
    [
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype", "fp8_e4m3"),
        ({"dtype": "half"}, "dtype", "float16"),
        ({"dtype": torch.bfloat16}, "dtype", "bfloat16"),
        ({"num_gpu_blocks_override": 7}, "num_kv_blocks", 7),
        ({"max_num_seqs": 1024}, "max_num_batched_tokens", 0),
        ({"max_num_seqs": 8, "max_num_batched_tokens": None}, "max_num_batched_tokens", 0),
        ({"gpu_memory_utilization": 0.5}, "gpu_memory_utilization", 0.5),
        ({"quantization": "fp8"}, "quantization", "fp8"),
        ({"seed": None}, "seed", None),
        ({}, "quantization", "none"),
    ],
)
def test_vllms_spelling_becomes_our_setting(base: Path, given: dict[str, Any], field: str, kept: object) -> None:
    config = EngineArgs(base, **given).create_engine_config()
    assert getattr(config, field) == kept


def test_what_has_no_effect_here_is_taken(base: Path) -> None:
    taken = dict[str, Any].fromkeys((name for name, one in ARGUMENTS.items() if one.is_without_need), True)
    taken |= {name: None for name in ARGUMENTS if name not in taken}
    taken |= {"tensor_parallel_size": 1, "cpu_offload_gb": 0.0, "load_format": "auto", "enable_sleep_mode": False}
    assert EngineArgs(base, **taken).create_engine_config() == EngineArgs(base).create_engine_config()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2 is not supported: a model runs on one device"),
        ({"runner": "draft"}, "runner='draft' is not supported: a model generates text"),
        ({"speculative_config": {"method": "ngram"}}, "is not supported: there is no speculation"),
        ({"load_format": "pt"}, "weights are read from safetensors files"),
    ],
)
def test_what_cannot_be_had_says_what_to_do(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EngineArgs("no/such/model", **given)


def test_an_unknown_argument_names_the_nearest_before_the_model_is_looked_for() -> None:
    with pytest.raises(TypeError, match="unknown argument 'max_modellen'; did you mean 'max_model_len'"):
        LLM("no/such/model", max_modellen=5)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8"])
def test_a_quantized_checkpoint_may_be_called_what_it_is(base: Path, method: str) -> None:
    linears = cast(OneLayout, None)
    model = replace(ModelConfig.from_folder(base), quantization=QuantizationConfig(method, linears, ""))
    assert agreed_quantization(method, model) == agreed_quantization(None, model) == "none"
    with pytest.raises(ValueError, match=f"quantization='int8', but the checkpoint is quantized with '{method}'"):
        agreed_quantization("int8", model)


def test_what_is_not_made_of_floats_is_refused(base: Path) -> None:
    with pytest.raises(ValueError, match=r"'gptq' is not made of a float checkpoint .* int4, int8, fp8, awq"):
        agreed_quantization("gptq", ModelConfig.from_folder(base))


@pytest.mark.parametrize(
    ("make", "asked", "words"),
    [
        (make_classifier, {"task": "generate"}, "task='generate' is not possible: this model classif"),
        (make_classifier, {"runner": "generate"}, "runner='generate' is not possible"),
        (make_classifier, {"task": "classify"}, ""),
        (make_checkpoint, {"task": "classify"}, "task='classify' is not possible: the model has no classification"),
        (make_checkpoint, {"task": "score"}, ""),
        (make_checkpoint, {"task": "embed", "runner": "pooling"}, ""),
        (make_checkpoint, {"task": "generate", "runner": "generate"}, ""),
    ],
)
def test_a_task_must_be_one_of_the_models(
    tmp_path: Path, make: Callable[[Path], Path], asked: dict[str, str], words: str
) -> None:
    make(tmp_path)
    if words:
        with pytest.raises(ValueError, match=words):
            EngineArgs(tmp_path, **asked).create_engine_config()
    else:
        EngineArgs(tmp_path, **asked).create_engine_config()
