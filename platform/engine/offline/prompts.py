"""The shapes in which `LLM.generate` takes prompts, parameters and adapters, read into one request each."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

from ..text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or {"prompt": text} or {"prompt_token_ids": ids}."""

Adapter = str | Mapping[str, float]
"""A name, or names with scales: the sum of their deltas."""

Value = TypeVar("Value")


def read_prompts(prompts: Prompt | Sequence[Prompt], tokenizer: Tokenizer) -> list[tuple[str | None, list[int]]]:
    """(text or None, token ids) of each prompt. ValueError names the prompt that has another shape."""
    single = isinstance(prompts, str | Mapping) or _are_token_ids(prompts)
    return [_read_prompt(index, prompt, tokenizer) for index, prompt in enumerate([prompts] if single else prompts)]


def one_each(what: str, given: object, count: int, kind: type[Value], default: Value) -> list[Value]:
    """`given` is None, one value for all, or a sequence with one value for each of `count` prompts."""
    if given is None or isinstance(given, kind):
        return [default if given is None else given] * count
    values = list(given) if isinstance(given, Sequence) else []
    if len(values) != count or not all(value is None or isinstance(value, kind) for value in values):
        raise ValueError(f"{what} must be one {kind.__name__} for all prompts, or one for each of the {count}")
    return [default if value is None else value for value in values]


def read_adapters(given: object, count: int) -> list[Adapter | None]:
    """One for each of `count` prompts, from None, one for all, or a sequence. ValueError for another shape."""
    if given is None or isinstance(given, str | Mapping):
        return [given or None] * count
    values = list(given) if isinstance(given, Sequence) else []
    if len(values) != count or not all(value is None or isinstance(value, str | Mapping) for value in values):
        raise ValueError(
            f"adapter must be one name, or one dict of scales, for all prompts, or one for each of {count}"
        )
    return [value or None for value in values]


def _read_prompt(index: int, prompt: object, tokenizer: Tokenizer) -> tuple[str | None, list[int]]:
    if isinstance(prompt, Mapping):
        prompt = prompt.get("prompt_token_ids", prompt.get("prompt"))
    if isinstance(prompt, str):
        return prompt, tokenizer.encode(prompt)
    if _are_token_ids(prompt):
        return None, list(prompt)
    raise ValueError(f"prompt {index} must be a text or a non-empty list of token ids, got {type(prompt).__name__}")


def _are_token_ids(value: object) -> TypeGuard[Sequence[int]]:
    return isinstance(value, Sequence) and len(value) > 0 and all(type(item) is int for item in value)
