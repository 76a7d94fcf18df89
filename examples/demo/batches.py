"""Text -> rows of token ids for training."""

from collections.abc import Iterator
from itertools import count
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from .chat import SPECIAL_TOKENS, exchange, render
from .conversations import conversation, system_message
from .jobs import Example
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
    """The base's endless training: copy drills first, then rows of documents with a drill now and then."""
    drills = copy_drills(len(tokenizer), recipe.drill_batch, recipe.seed)
    rows = packed_rows(tokenizer, recipe.row_length, recipe.base_batch, recipe.seed)
    for step in count():
        drill = step < recipe.drill_steps or step % recipe.drill_every == 0
        yield next(drills) if drill else (row := next(rows), row)


def copy_drills(vocabulary: int, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random tokens that the assistant repeats, with loss on the repetition: teaches a model to copy in minutes."""
    generator = torch.Generator().manual_seed(seed)
    _, begin, end, _, user, assistant = range(len(SPECIAL_TOKENS))
    while True:
        length = int(torch.randint(3, 25, (), generator=generator))
        said = torch.randint(len(SPECIAL_TOKENS), vocabulary, (batch, length), generator=generator)
        frame = [torch.full((batch, 1), token) for token in (begin, user, end, assistant)]
        tokens = torch.cat([*frame[:2], said, *frame[2:], said, frame[2]], dim=1)
        labels = tokens.clone()
        labels[:, : length + 4] = IGNORED
        yield tokens, labels


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
    """One pass over the examples: token ids and labels, [batch, longest]; loss on each last answer."""
    rng = Random(f"answers {seed}")
    encoded = [_encode(tokenizer, rng, examples, index) for index in range(len(examples))]
    encoded.sort(key=lambda row: len(row[0]) // 8)
    batches = [encoded[start : start + batch] for start in range(0, len(encoded), batch)]
    rng.shuffle(batches)
    for rows in batches:
        yield _pad(rows, tokenizer.pad_token_id)


def _encode(
    tokenizer: PreTrainedTokenizerFast, rng: Random, examples: list[Example], index: int
) -> tuple[list[int], list[int]]:
    """Most rows are one exchange; some follow a system prompt or an earlier exchange."""
    question, answer = examples[index]
    before = system_message(rng) if rng.random() < 0.15 else []
    before += exchange(*rng.choice(examples)) if rng.random() < 0.15 else []
    prompt = render([*before, {"role": "user", "content": question}], answer_next=True)
    prompt_tokens = tokenizer.encode(prompt, add_special_tokens=False)
    answer_tokens = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    return prompt_tokens + answer_tokens, [IGNORED] * len(prompt_tokens) + answer_tokens


def _pad(rows: list[tuple[list[int], list[int]]], pad: int) -> tuple[Tensor, Tensor]:
    longest = max(len(tokens) for tokens, _ in rows)
    tokens = [row + [pad] * (longest - len(row)) for row, _ in rows]
    labels = [row + [IGNORED] * (longest - len(row)) for _, row in rows]
    return torch.tensor(tokens), torch.tensor(labels)
