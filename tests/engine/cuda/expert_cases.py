"""Mixtures of experts on CUDA's path: beside transformers and peft, and beside the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma4TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from loraplex import SamplingParams
from loraplex.engine.quantize.options import QuantizeOptions
from loraplex.engine.quantize.run import quantize_checkpoint
from tests.checkpoints import make_adapter
from tests.engine.cuda_engine import cuda
from tests.engine.model.families.expert_adapters import make_expert_adapter
from tests.engine.model.families.parity import TOKENS, make_base
from tests.engine.model.families.test_gpt_oss import in_mxfp4
from tests.engine.model.families.test_mixtures import GEMMA4
from tests.engine.recorded_graph import RecordedGraph
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .requests import on_both, prompts, run, tokens, told, with_peft

__all__ = ["cuda", "one_patch_a_module", "poisoned_memory", "prompts", "rounding"]
pytestmark = pytest.mark.usefixtures("cuda")
SHAPE: dict[str, Any] = TOKENS | {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 128, "head_dim": 16,
}  # fmt: skip
CONFIGS: dict[str, PretrainedConfig] = {
    "qwen3": Qwen3MoeConfig(
        **SHAPE, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True
    ),
    "qwen2": Qwen2MoeConfig(
        **SHAPE, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=24
    ),
    "gpt-oss": GptOssConfig(**SHAPE, num_local_experts=6, num_experts_per_tok=3, sliding_window=9),
    "glm": Glm4MoeConfig(
        **SHAPE, n_routed_experts=8, num_experts_per_tok=4, moe_intermediate_size=32, n_group=4, topk_group=2,
        routed_scaling_factor=1.7, n_shared_experts=2, first_k_dense_replace=1, use_qk_norm=True,
    ),
    "gemma4": Gemma4TextConfig(**SHAPE | GEMMA4 | {"num_hidden_layers": 3}),
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2),
}  # fmt: skip
ATTENTION = ("q_proj", "o_proj")


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_of_transformers_in_batches_and_graphs(name: str, tmp_path: Path, prompts: list[list[int]]) -> None:
    base = make_base(tmp_path / "base", CONFIGS[name])
    own = {"rank4": make_adapter(tmp_path / "rank4", base, rank=4, seed=1, kinds=ATTENTION)}
    names = (None, "rank4", None, "rank4")
    one, other = [[tokens(run(llm, prompts, names)) for _ in range(2)] for llm in on_both(base, own)]
    assert other == one == [with_peft(base, own, prompts, names)] * 2
    assert RecordedGraph.replayed > 0


@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_adapters_on_experts_and_routers_are_pefts(name: str, tmp_path: Path, prompts: list[list[int]]) -> None:
    """Graphs captured for some of them replay for others, and steps whose adapters leave experts alone run none."""
    base = make_base(tmp_path / "base", CONFIGS[name])
    own = {
        "experts": make_expert_adapter(tmp_path / "experts", base, rank=11, others=("q_proj", "gate")),
        "others": make_expert_adapter(tmp_path / "others", base, rank=3, seed=5, others=()),
        "attention": make_adapter(tmp_path / "attention", base, rank=3, kinds=ATTENTION),
    }
    names = ("experts", "others", None, "attention")
    wanted = [
        [told for prompt in prompts for told in with_peft(base, {name: own[name]} if name else {}, [prompt], [name])]
        for name in names
    ]
    one, other = [
        [tokens(run(llm, prompts, [*names[first:], *names[:first]])) for first in range(len(names))]
        for llm in on_both(base, own, adapter_memory=8 << 20)
    ]
    assert (
        one
        == other
        == [
            [wanted[(first + place) % len(names)][place] for place in range(len(prompts))]
            for first in range(len(names))
        ]
    )
    assert RecordedGraph.replayed > 0


def test_sums_vectors_and_few_experts_are_the_cpus(tmp_path: Path, prompts: list[list[int]]) -> None:
    base = make_base(tmp_path / "base", CONFIGS["qwen2"])
    own = {
        "dora": make_expert_adapter(tmp_path / "dora", base, experts=(1, 4), use_dora=True, others=()),
        "few": make_expert_adapter(tmp_path / "few", base, experts=(0, 1), rank=9, seed=4, others=()),
        "more": make_expert_adapter(tmp_path / "more", base, experts=range(5), rank=2, seed=6),
    }
    names = ({"more": 0.5, "few": -0.7}, "dora", "few", None)
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, prompt_logprobs=0)
    outputs = [run(llm, prompts, names, params) for llm in on_both(base, own, adapter_memory=8 << 20)]
    assert tokens(outputs[0]) == tokens(outputs[1])
    assert told(outputs[1]) == pytest.approx(told(outputs[0]), abs=1e-4)


@pytest.mark.parametrize("quantization", ["int4", "int8", "awq"])
def test_quantized_experts_are_close_to_the_cpus(quantization: str, tmp_path: Path, prompts: list[list[int]]) -> None:
    base = make_base(tmp_path / "base", CONFIGS["qwen3"])
    own = {"experts": make_expert_adapter(tmp_path / "experts", base, rank=4, others=())}
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    settings: dict[str, Any] = {"dtype": "bfloat16", "adapter_memory": 8 << 20}
    if quantization == "awq":
        options = QuantizeOptions(scheme="awq", group_size=32, calibration_tokens=1536)
        quantize_checkpoint(base, tmp_path / "awq", options)
        base = tmp_path / "awq"
    else:
        settings["quantization"] = quantization
    one, other = [
        torch.tensor(told(run(llm, prompts, (None, "experts", "experts", None), params)))
        for llm in on_both(base, own, **settings)
    ]
    assert (other - one).abs().mean() < 0.03 and (other - one).abs().max() < 0.3


def test_mxfp4_experts_are_close_to_the_cpus(tmp_path: Path, prompts: list[list[int]]) -> None:
    base = make_base(tmp_path / "base", CONFIGS["gpt-oss"])
    in_mxfp4(base)
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    one, other = [
        torch.tensor(told(run(llm, prompts, (None,) * 4, params))) for llm in on_both(base, {}, dtype="bfloat16")
    ]
    assert (other - one).abs().mean() < 0.03 and (other - one).abs().max() < 0.3
