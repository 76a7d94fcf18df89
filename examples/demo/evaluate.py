"""Greedy exact match of the saved files on held-out examples, through transformers and PEFT."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from .jobs import Example, Job, split
from .recipe import Recipe

MAX_ANSWER = 96
"""Tokens; the longest right answer is well below."""
BATCH = 100


@dataclass(frozen=True, slots=True)
class Figures:
    summary: str
    rank: int
    targets: tuple[str, ...]
    heldout: int
    adapter_exact_match: float
    base_exact_match: float


def measure(job: Job, recipe: Recipe, base: Path, adapter: Path) -> dict[str, object]:
    """The figures of one adapter and of the base alone on the same prompts."""
    tokenizer = load_tokenizer(base)
    model = PeftModel.from_pretrained(load_base(base), adapter)
    _, examples = split(job, recipe.heldout, recipe.seed)
    with_adapter = exact_match(model, tokenizer, examples)
    with model.disable_adapter():
        alone = exact_match(model, tokenizer, examples)
    return asdict(Figures(job.summary, job.rank, job.targets, len(examples), with_adapter, alone))


def load_base(folder: Path) -> PreTrainedModel:
    """The saved bf16 weights, computed in fp32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Padding on the left, as generation in batches needs."""
    return AutoTokenizer.from_pretrained(folder, padding_side="left")


def exact_match(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, examples: list[Example]) -> float:
    answers = answer(model, tokenizer, [question for question, _ in examples])
    return sum(given == right for given, (_, right) in zip(answers, examples, strict=True)) / len(examples)


def answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, questions: list[str]) -> list[str]:
    """The model's greedy answers; one that does not end within MAX_ANSWER tokens is cut there."""
    answers = list[str]()
    for start in range(0, len(questions), BATCH):
        chats = [[{"role": "user", "content": question}] for question in questions[start : start + BATCH]]
        prompts = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
        )
        tokens = model.eval().generate(**prompts, do_sample=False, max_new_tokens=MAX_ANSWER)
        answers += tokenizer.batch_decode(tokens[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
    return answers
