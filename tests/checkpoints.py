"""Tiny random checkpoints, tokenizers and adapters in Hugging Face and PEFT layout, the same for the same seed."""

from pathlib import Path
from typing import Any

import torch
from peft import IA3Config, LoraConfig, PeftModel, TaskType, TrainableTokensConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    LlamaConfig,
    MinistralConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3Config,
)
from transformers.models.auto import AutoModelForCausalLM

ALL_KINDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "Select name from users where age is above 30;",
    '{"name": "Zoë", "city": "Zürich", "mood": "😀🎉"}',
    "Numbers 0 1 2 3 4 5 6 7 8 9 and words, again and again.",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SMALL: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
FAMILIES: dict[str, type[PretrainedConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "ministral": MinistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "qwen3_5": Qwen3_5TextConfig,
}


def make_checkpoint(
    folder: Path, family: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any
) -> Path:
    """A random model of `family` and a byte-level tokenizer. `overrides` are fields of its config class."""
    config = FAMILIES[family](**(SMALL | overrides))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        _spread(model)
    model.to(dtype).save_pretrained(folder)
    make_tokenizer(folder)
    return folder


def make_adapter(
    folder: Path,
    base: Path,
    rank: int = 8,
    seed: int = 1,
    kinds: tuple[str, ...] | str = ALL_KINDS,
    alpha: float | None = None,
    vocab_size: int | None = None,
    **settings: Any,
) -> Path:
    """A random PEFT adapter of `base` with a visible effect. `settings` are fields of LoraConfig.

    `kinds`: names of modules, or "all-linear". `vocab_size`: what the embedding is resized to before training.
    """
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if vocab_size is not None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model.resize_token_embeddings(vocab_size)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha or 2 * rank,
        target_modules=kinds if isinstance(kinds, str) else list(kinds),
        task_type="CAUSAL_LM",
        **settings,
    )
    adapted = get_peft_model(model, config)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, parameter in adapted.named_parameters():
            if "modules_to_save" in name or "trainable_tokens" in name:
                parameter.add_(torch.empty_like(parameter).normal_(std=float(parameter.std().clamp(min=0.2))))
            elif "magnitude" in name:
                parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.3))
            elif "lora_" in name and parameter.dim() == 2:
                parameter.normal_(std=0.4 / parameter.shape[1] ** 0.5)
            elif name.endswith(".bias") and parameter.requires_grad:
                parameter.normal_(std=0.3)
    adapted.save_pretrained(folder)
    return folder


def make_converted(folder: Path, base: Path, seed: int = 1, start: str = "pissa", **settings: Any) -> Path:
    """A random adapter whose `start` (init_lora_weights) changed the base, as PEFT saves it for the base as it is."""
    kinds = ["q_proj", "v_proj", "down_proj"]
    config = LoraConfig(r=4, lora_alpha=6, target_modules=kinds, task_type="CAUSAL_LM", **settings)
    config.init_lora_weights = start
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    first = folder.with_name(f"{folder.name}-start")
    config.init_lora_weights = True
    adapted.save_pretrained(first)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.empty_like(parameter).normal_(std=0.3 / parameter.shape[1] ** 0.5))
    adapted.save_pretrained(folder, path_initial_model_for_weight_conversion=str(first))
    return folder


def make_ia3(
    folder: Path, base: Path, seed: int = 1, kinds: tuple[str, ...] = ("k_proj", "v_proj", "down_proj"), **settings: Any
) -> Path:
    """A random IA3 adapter of `base` in PEFT layout. `settings` are fields of IA3Config."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    feedforward = [kind for kind in kinds if kind == "down_proj"]
    config = IA3Config(**{"feedforward_modules": feedforward, "target_modules": list(kinds)} | settings)
    config.task_type = TaskType.CAUSAL_LM
    adapted = get_peft_model(model, config)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, parameter in adapted.named_parameters():
            if "ia3_l" in name:
                parameter.uniform_(0.3, 1.7)
    adapted.save_pretrained(folder)
    return folder


def make_tokens(folder: Path, base: Path, seed: int = 1, **settings: Any) -> Path:
    """Random rows of single tokens and nothing else, in PEFT layout. `settings` are fields of TrainableTokensConfig."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(model, TrainableTokensConfig(task_type=TaskType.CAUSAL_LM, **settings))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.empty_like(parameter).normal_(std=0.3))
    adapted.save_pretrained(folder)
    return folder


def make_tokenizer(folder: Path) -> Path:
    """A byte-level BPE tokenizer of 300 tokens with <s>, </s>, <pad> and a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=CHAT_TEMPLATE
    )
    fast.save_pretrained(folder)
    return folder


def reference_model(
    base: Path, adapters: dict[str, Path] | None = None, vocab_size: int | None = None
) -> PreTrainedModel | PeftModel:
    """The checkpoint in transformers, float32, with its adapters in peft (`set_adapter`, `disable_adapter`).

    `vocab_size`: what the embedding was resized to before they were trained.
    """
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    if vocab_size is not None:
        model.resize_token_embeddings(vocab_size)
    for name, folder in (adapters or {}).items():
        if isinstance(model, PeftModel):
            model.load_adapter(folder, adapter_name=name)
        else:
            model = PeftModel.from_pretrained(model, folder, adapter_name=name)
    return model


def _spread(model: PreTrainedModel) -> None:
    """Random biases and norms, which transformers starts at 0 and 1, and weights large enough that tokens matter."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif parameter.dim() > 1:
                parameter.normal_(std=0.3 if "embed" in name else 1.2 / parameter.shape[1] ** 0.5)
