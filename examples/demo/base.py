"""Trains the base model and its tokenizer and saves them."""

from itertools import islice
from pathlib import Path

import torch
from rich.progress import Progress
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .batches import documents, lessons
from .files import amend_json
from .optimize import optimize
from .recipe import CONTEXT, Recipe, llama_config
from .tokenizer import train_tokenizer

TOKENIZER_DOCUMENTS = 20_000


def train_base(recipe: Recipe, folder: Path, progress: Progress) -> None:
    """Leaves `folder` with config, bf16 weights, tokenizer and generation config."""
    torch.manual_seed(recipe.seed)
    tokenizer = train_tokenizer(islice(documents(recipe.seed), TOKENIZER_DOCUMENTS), recipe.vocabulary, CONTEXT)
    model = LlamaForCausalLM(llama_config(recipe, len(tokenizer)))
    optimize(model, lessons(tokenizer, recipe), recipe.base_steps, recipe.base_learning_rate, progress, "base")
    _save(model, tokenizer, folder)


def _save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    config = model.config
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    amend_json(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
