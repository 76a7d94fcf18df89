"""Text -> rows of token ids for training."""

from collections.abc import Iterator
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from .chat import Message, exchange, render
from .conversations import conversation, system_message
from .jobs import TAUGHT, Example, split
from .recipe import Recipe
from .stories import notes, story

IGNORED = -100
"""The label that gives no loss."""


def documents(seed: int) -> Iterator[str]:
    """The base's endless corpus: mostly conversations, then stories, then notes of other kinds."""
    rng = Random(f"documents {seed}")
    while True:
        kind = rng.random()
        if kind < 0.65:
            yield render(conversation(rng))
        else:
            yield render([]) + (story(rng) if kind < 0.85 else notes(rng))


def lessons(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Iterator[tuple[Tensor, Tensor]]:
    """The base's endless training: documents, and in turn jobs under the system prompt that asks for them."""
    rows = packed_rows(tokenizer, recipe.row_length, recipe.base_batch, recipe.seed)
    told = instructed_rows(tokenizer, recipe)
    while True:
        row = next(rows)
        yield row, row
        for _ in range(recipe.jobs_per_document):
            yield next(told)


def instructed_rows(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of training examples of the taught jobs mixed, each under its job's instruction."""
    rng = Random(f"instructed {recipe.seed}")
    examples = [(told, *pair) for told, job in TAUGHT.items() for pair in split(job, recipe.heldout, recipe.seed)[0]]
    while True:
        chosen = rng.sample(examples, recipe.adapter_batch)
        yield _pad(
            [_encode(tokenizer, [_system(told)], question, answer) for told, question, answer in chosen],
            tokenizer.pad_token_id,
        )


def packed_rows(tokenizer: PreTrainedTokenizerFast, length: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Endless [batch, length] token ids, documents one after another."""
    tokens, corpus = list[int](), documents(seed)
    while True:
        while len(tokens) < length * batch:
            tokens += tokenizer.encode(next(corpus), add_special_tokens=False)
            if tokens[-1] != tokenizer.eos_token_id:
                tokens.append(tokenizer.eos_token_id)
        yield torch.tensor(tokens[: length * batch]).view(batch, length)
        tokens = tokens[length * batch :]


def answer_rows(
    tokenizer: PreTrainedTokenizerFast, examples: list[Example], batch: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of examples: token ids and labels, [batch, longest]; loss on each last answer."""
    rng = Random(f"answers {seed}")
    while True:
        chosen = rng.sample(examples, batch)
        yield _pad([_answer(tokenizer, rng, examples, pair) for pair in chosen], tokenizer.pad_token_id)


def _answer(
    tokenizer: PreTrainedTokenizerFast, rng: Random, examples: list[Example], pair: Example
) -> tuple[list[int], list[int]]:
    """Most rows are one exchange; some follow a system prompt or an earlier exchange."""
    before = system_message(rng) if rng.random() < 0.15 else []
    before += exchange(*rng.choice(examples)) if rng.random() < 0.15 else []
    return _encode(tokenizer, before, *pair)


def _system(instruction: str) -> Message:
    return {"role": "system", "content": instruction}


def _encode(
    tokenizer: PreTrainedTokenizerFast, before: list[Message], question: str, answer: str
) -> tuple[list[int], list[int]]:
    prompt = render([*before, {"role": "user", "content": question}], answer_next=True)
    prompt_tokens = tokenizer.encode(prompt, add_special_tokens=False)
    answer_tokens = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    return prompt_tokens + answer_tokens, [IGNORED] * len(prompt_tokens) + answer_tokens


def _pad(rows: list[tuple[list[int], list[int]]], pad: int) -> tuple[Tensor, Tensor]:
    longest = max(len(tokens) for tokens, _ in rows)
    tokens = [row + [pad] * (longest - len(row)) for row, _ in rows]
    labels = [row + [IGNORED] * (longest - len(row)) for _, row in rows]
    return torch.tensor(tokens), torch.tensor(labels)
