"""Random checkpoints of small models of several families, with adapters, made once under benchmarks/.cache."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import Gemma3TextConfig, OPTConfig, PretrainedConfig, Qwen3_5TextConfig, Qwen3MoeConfig
from transformers.models.auto import AutoModelForCausalLM

from loraplex.engine.model.config import base_signature

from .checkpoints import CACHE, write_tokenizer

RANK: Final = 16


@dataclass(frozen=True)
class FamilyModel:
    config: Callable[[], PretrainedConfig]
    vocab: int
    linears: tuple[str, ...]
    """Last names of what adapters target."""


TOKENS: Final[Mapping[str, Any]] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
GATED: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DELTA_NET: Final = ("in_proj_qkv", "in_proj_z", "out_proj")
MODELS: Final[Mapping[str, FamilyModel]] = {
    "opt-350m": FamilyModel(
        lambda: OPTConfig(
            vocab_size=50272, hidden_size=1024, ffn_dim=4096, num_hidden_layers=24, num_attention_heads=16,
            word_embed_proj_dim=512, do_layer_norm_before=False, max_position_embeddings=2048, **TOKENS,
        ),
        50272,
        ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    ),
    "gemma3-1b": FamilyModel(
        lambda: Gemma3TextConfig(
            vocab_size=262144, hidden_size=1152, intermediate_size=6912, num_hidden_layers=26, num_attention_heads=4,
            num_key_value_heads=1, head_dim=256, sliding_window=512, max_position_embeddings=32768, **TOKENS,
        ),
        262144,
        GATED,
    ),
    "qwen3.5-0.8b": FamilyModel(
        lambda: Qwen3_5TextConfig(
            vocab_size=248320, hidden_size=1024, intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8,
            num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16,
            linear_key_head_dim=128, linear_value_head_dim=128, tie_word_embeddings=True,
            max_position_embeddings=32768, **TOKENS,
        ),
        248320,
        (*GATED, *DELTA_NET),
    ),
}  # fmt: skip

MIXTURE: Final = "mixture-2b"
MIXTURES: Final[Mapping[str, FamilyModel]] = {
    MIXTURE: FamilyModel(
        lambda: Qwen3MoeConfig(
            vocab_size=32768, hidden_size=1024, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=4,
            head_dim=64, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=2304, norm_topk_prob=True,
            tie_word_embeddings=True, max_position_embeddings=32768, **TOKENS,
        ),
        32768,
        GATED[:4],
    ),
    "qwen3-30b-a3b, 8 layers": FamilyModel(
        lambda: Qwen3MoeConfig(
            vocab_size=151936, hidden_size=2048, num_hidden_layers=8, num_attention_heads=32, num_key_value_heads=4,
            head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True,
            tie_word_embeddings=False, max_position_embeddings=32768, **TOKENS,
        ),
        151936,
        GATED[:4],
    ),
}  # fmt: skip
"""With experts."""
ALL: Final = {**MODELS, **MIXTURES}


def family_checkpoint(name: str) -> Path:
    """Folder with a bf16 checkpoint in Hugging Face layout."""
    folder = CACHE / name
    if not (folder / "model.safetensors").exists():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(ALL[name].config(), dtype=torch.bfloat16)
        model.save_pretrained(folder)
        write_tokenizer(ALL[name].vocab, folder)
    return folder


def family_adapter(name: str, seed: int) -> Path:
    """Folder with a PEFT adapter of rank 16 on the layers' linears; B is not zero."""
    folder = CACHE / f"{name}-adapters" / f"r{RANK}-{seed}"
    if not (folder / "adapter_model.safetensors").exists():
        base = AutoModelForCausalLM.from_pretrained(family_checkpoint(name), dtype=torch.bfloat16)
        targets = list(ALL[name].linears)
        settings = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=targets, task_type="CAUSAL_LM")
        adapted = get_peft_model(base, settings)
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter_name, parameter in adapted.named_parameters():
                if "lora_" in parameter_name:
                    parameter.normal_(std=0.02)
        adapted.save_pretrained(folder)
    return folder


def expert_adapter(name: str, seed: int) -> Path:
    """The same on attention and on every expert, each as a module of its own."""
    folder = CACHE / f"{name}-adapters" / f"experts-r{RANK}-{seed}"
    if (folder / "adapter_model.safetensors").exists():
        return folder
    base, tensors = base_signature(family_checkpoint(name)), dict[str, torch.Tensor]()
    targets = {"gate_proj", "up_proj", "down_proj", *ALL[name].linears}
    random = torch.Generator().manual_seed(seed)
    for kind, module in base.modules.items():
        if module.path.rpartition(".")[2] in targets:
            for layer in module.layers or ():
                stem = f"base_model.model.{base.path_of(layer, kind)}"
                for side, shape in (("A", (RANK, module.inputs)), ("B", (module.outputs, RANK))):
                    values = torch.empty(shape).normal_(std=0.02, generator=random)
                    tensors[f"{stem}.lora_{side}.weight"] = values.bfloat16()
    settings = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=sorted(targets), task_type="CAUSAL_LM")
    settings.save_pretrained(folder)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    return folder
