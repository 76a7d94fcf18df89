"""Trains one LoRA adapter over the saved base with PEFT and saves it."""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from rich.progress import Progress
from transformers import AutoModelForCausalLM, AutoTokenizer

from .batches import answer_rows
from .files import amend_json
from .jobs import Job, split
from .optimize import optimize
from .recipe import NAME, Recipe


def train_adapter(job: Job, recipe: Recipe, base: Path, folder: Path, progress: Progress) -> None:
    """Leaves `folder` with adapter_config.json and bf16 adapter_model.safetensors."""
    torch.manual_seed(recipe.seed)
    examples, _ = split(job, recipe.heldout, recipe.seed)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), _lora_config(job))
    rows = answer_rows(AutoTokenizer.from_pretrained(base), examples, recipe.adapter_batch, recipe.seed)
    steps = max(1, round(job.steps * recipe.adapter_share))
    optimize(model, rows, steps, recipe.adapter_learning_rate, progress, job.name)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    amend_json(folder / "adapter_config.json", base_model_name_or_path=NAME, target_modules=list(job.targets))


def _lora_config(job: Job) -> LoraConfig:
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=job.rank,
        lora_alpha=2 * job.rank,
        lora_dropout=0.0,
        target_modules=list(job.targets),
        use_dora=job.dora,
    )
