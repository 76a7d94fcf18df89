"""Mixtures as they are served: rounded weights, neighbours in the batch, and adapters of stacked tensors."""

from pathlib import Path
from shutil import copytree
from typing import Any, Final

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import Gemma4TextConfig, PretrainedConfig, Qwen2MoeConfig
from transformers.models.auto import AutoModelForCausalLM

from loraplex import LLM, SamplingParams
from loraplex.engine.certify.certificate import CertifyJob
from loraplex.engine.certify.run import certify
from loraplex.engine.config import EngineConfig
from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.model.description.feed_forward import ExpertsSpec
from loraplex.engine.model.expected import layer_path
from loraplex.lora.files.manifest import Inspection
from loraplex.lora.inspection.inspection import inspect_adapter
from loraplex.quant.weights.online import OnlineQuantization
from tests.checkpoints import CORPUS, reference_model

from .expert_adapters import make_expert_adapter
from .parity import SHOWN, TOKENS, Shown, make_base

SIZES: Final[dict[str, Any]] = TOKENS | {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "num_experts": 9, "num_experts_per_tok": 3,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 96,
}  # fmt: skip
GEMMA4: Final = Gemma4TextConfig(
    **{name: size for name, size in SIZES.items() if "expert" not in name},
    head_dim=16, global_head_dim=32, sliding_window=9, hidden_size_per_layer_input=0, enable_moe_block=True,
    num_experts=9, top_k_experts=3, layer_types=["sliding_attention", "full_attention"],
)  # fmt: skip
PROMPTS: Final = [list(range(3 + start, 40 + 5 * start)) for start in range(7)]
ROUNDED: Final = 5e-3
"""Of a log-probability: both sides multiply the same rounded weights."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), Qwen2MoeConfig(**SIZES))


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On attention and on each expert by its name."""
    return make_expert_adapter(tmp_path_factory.mktemp("adapter") / "one", base, experts=range(9))


def rewritten(base: Path, folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    copytree(base, folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def log_probabilities(llm: LLM, prompts: list[list[int]], adapter: list[str | None]) -> list[list[float]]:
    """That each prompt gives its tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    outputs = llm.generate(prompts, params, adapter=adapter, use_tqdm=False)
    return [
        [next(iter(entry.values())).logprob for entry in (output.prompt_logprobs or [])[1:] if entry]
        for output in outputs
    ]


def opened(base: Path, **settings: Any) -> LLM:
    return LLM(base, max_model_len=100, num_kv_blocks=96, num_threads=2, **settings)


@pytest.mark.parametrize("scheme", ["int8", "fp8", "int4"])
def test_experts_are_rounded_as_they_load_and_the_router_is_not(
    base: Path, adapter: Path, tmp_path: Path, scheme: str
) -> None:
    spec, online = ModelConfig.from_folder(base).spec, OnlineQuantization(scheme)
    tensors = load_file(base / "model.safetensors")
    for number, layer in enumerate(spec.layers):
        for linear in (*layer.linears(), *layer.expert_linears()):
            if linear.kind not in ("gate", "shared_expert_gate"):
                name = f"{layer_path(spec, number)}{linear.path}.weight"
                weight = online.linear(tensors[name])
                assert not isinstance(weight, torch.Tensor)
                tensors[name] = weight.dequantized().contiguous()
    lora, scaling = load_file(adapter / "adapter_model.safetensors"), 2
    for name in lora:
        if "lora_A" in name:
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            tensors[f"{module}.weight"] += scaling * (lora[name.replace("lora_A", "lora_B")] @ lora[name])
    model = reference_model(rewritten(base, tmp_path / "rounded", tensors))
    with opened(base, quantization=scheme, adapters={"one": adapter}) as llm:
        found = log_probabilities(llm, PROMPTS, ["one"] * len(PROMPTS))
    errors = list[torch.Tensor]()
    for prompt, own in zip(PROMPTS, found, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0]
        wanted = logits[:-1].log_softmax(-1).gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        errors.append((torch.tensor(own) - wanted).abs())
    # Kernels of 8 bits keep 16 bits of an activation: a near tie of experts may fall otherwise than in float32.
    assert sum(bool(error.max() >= ROUNDED) for error in errors) <= (scheme == "int8")
    assert all(error.median() < ROUNDED / 10 for error in errors)
    SHOWN.append(Shown(ModelConfig.from_folder(base).architecture, weights=scheme))


def test_a_certificate_says_what_rounded_experts_cost(base: Path, adapter: Path) -> None:
    found = {}
    for scheme in ("none", "int8", "int4"):
        engine = EngineConfig(model=str(base), quantization=scheme)
        found[scheme] = certify(CertifyJob(engine, adapter=str(adapter), prompts=CORPUS)).weights.mean_kl
    assert found["none"] < 1e-6 < found["int8"] < found["int4"]


@pytest.mark.parametrize("scheme", ["none", "int8"])
@pytest.mark.parametrize("config", [Qwen2MoeConfig(**SIZES), GEMMA4], ids=["qwen2", "gemma4"])
def test_near_ties_of_experts_do_not_flip_by_neighbours(config: PretrainedConfig, tmp_path: Path, scheme: str) -> None:
    """Rows of the routers differ in their last bits alone: any other order of a sum would choose other experts."""
    base = make_base(tmp_path / "base", config)
    adapter = make_expert_adapter(tmp_path / "one", base, experts=range(9))
    tensors = load_file(base / "model.safetensors")
    generator = torch.Generator().manual_seed(5)
    for number, layer in enumerate(ModelConfig.from_folder(base).spec.layers):
        assert isinstance(layer.feed_forward, ExpertsSpec)
        name = f"model.layers.{number}.{layer.feed_forward.routing.router.path}.weight"
        row, shape = tensors[name][:1], tensors[name].shape
        tensors[name] = row * (1 + 1e-7 * torch.randn(shape, generator=generator))
    folder = rewritten(base, tmp_path / "ties", tensors)
    settings: dict[str, Any] = {"quantization": scheme, "adapters": {"one": adapter}, "enable_prefix_caching": False}
    names = [None if at % 3 == 0 else "one" for at in range(len(PROMPTS))]
    with opened(folder, **settings) as llm:
        together = log_probabilities(llm, PROMPTS, names)
        alone = [log_probabilities(llm, [prompt], [name])[0] for prompt, name in zip(PROMPTS, names, strict=True)]
    with opened(folder, **settings, max_num_batched_tokens=5, max_num_seqs=3) as llm:
        pieces = log_probabilities(llm, PROMPTS, names)
    assert together == alone == pieces


def inspected(base: Path, folder: Path) -> Inspection:
    config = (folder / "adapter_config.json").read_bytes()
    return inspect_adapter(config, folder / "adapter_model.safetensors", base_signature(base))


def test_parameters_of_experts_are_refused_as_targets(base: Path, tmp_path: Path) -> None:
    """As PEFT trains and saves them."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(
        model, LoraConfig(r=2, target_modules=["q_proj"], target_parameters=["mlp.experts.down_proj"])
    )
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    adapted.save_pretrained(tmp_path / "adapter")
    found = inspected(base, tmp_path / "adapter")
    assert found.manifest is None
    words = " ".join(failure.message for failure in found.failures())
    assert "target_parameters" in words and "mlp.experts" in words
