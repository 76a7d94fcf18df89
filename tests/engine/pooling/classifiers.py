"""Random models for sequence classification and adapters with a head, in Hugging Face and PEFT layout."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForSequenceClassification

from tests.checkpoints import FAMILIES, SMALL, make_tokenizer


def make_classifier(folder: Path, family: str = "llama", classes: int = 3, **overrides: Any) -> Path:
    config = FAMILIES[family](**(SMALL | {"num_labels": classes} | overrides))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        model = AutoModelForSequenceClassification.from_config(config)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3)
            else:
                parameter.normal_(std=0.2)
    model.save_pretrained(folder)
    make_tokenizer(folder)
    return folder


def make_headed_adapter(folder: Path, base: Path, classes: int = 4, seed: int = 1, **settings: Any) -> Path:
    """As PEFT trains it for classification: a LoRA, and a head of its own."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(
            base, num_labels=classes, dtype=torch.float32, ignore_mismatched_sizes=True
        )
        config = LoraConfig(**({"r": 4, "target_modules": ["q_proj", "down_proj"], "task_type": "SEQ_CLS"} | settings))
        adapted = get_peft_model(model, config)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.normal_(std=0.3)
        adapted.save_pretrained(folder)
    return folder


def scores_of(base: Path, prompts: list[list[int]], adapter: Path | None = None, classes: int = 4) -> torch.Tensor:
    """[prompts, classes] of transformers and PEFT, without an activation."""
    if adapter is None:
        model: Any = AutoModelForSequenceClassification.from_pretrained(base, dtype=torch.float32)
    else:
        model = AutoModelForSequenceClassification.from_pretrained(
            base, num_labels=classes, dtype=torch.float32, ignore_mismatched_sizes=True
        )
        model = PeftModel.from_pretrained(model, adapter)
    model.eval()
    with torch.no_grad():
        return torch.cat([model(torch.tensor([prompt])).logits for prompt in prompts])
