"""The shapes in which prompts, parameters and adapters are taken, read into one each."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard, TypeVar

from ..text.tokenizer import Tokenizer, TokenPair

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or {"prompt": text} or {"prompt_token_ids": ids}."""

Adapter = str | Mapping[str, float]
"""A name, or names with scales: the sum of their deltas."""

Value = TypeVar("Value")
MULTIMODAL: Final = ("multi_modal_data", "mm_processor_kwargs", "encoder_prompt", "prompt_embeds")


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as many."""
    if isinstance(prompts, str | Mapping) or _are_token_ids(prompts):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise ValueError(f"prompts must be one prompt or a list of them, got {type(prompts).__name__}")
    several: Sequence[Any] = prompts
    return list(several)


def read_prompt(prompt: object, tokenizer: Tokenizer, before: str = "") -> tuple[str | None, list[int]]:
    """Text or None, and token ids. `before`: put before a text. ValueError for another shape."""
    if isinstance(prompt, Mapping):
        for name in MULTIMODAL:
            if prompt.get(name) is not None:
                raise ValueError(f"{name} of a prompt is not supported: models here read text")
        prompt = prompt.get("prompt_token_ids", prompt.get("prompt"))
    if isinstance(prompt, str):
        return prompt, tokenizer.encode(before + prompt)
    if isinstance(prompt, TokenPair):
        return None, prompt
    if _are_token_ids(prompt):
        return None, list(prompt)
    raise ValueError(f"a prompt must be a text or a non-empty list of token ids, got {type(prompt).__name__}")


def one_each(
    what: str, given: object, count: int, kind: type[Value] | tuple[type[Value], ...], words: str
) -> list[Value | None]:
    """`given` is None, one value for all, or a sequence with one value or None for each of `count` prompts. `words`:
    what one is."""
    if given is None or isinstance(given, kind):
        return [given] * count
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    if len(values) != count or not all(value is None or isinstance(value, kind) for value in values):
        raise ValueError(f"{what} must be one {words} for all prompts, or one for each of the {count}")
    return values


def _are_token_ids(value: object) -> TypeGuard[Sequence[int]]:
    return isinstance(value, Sequence) and len(value) > 0 and all(type(item) is int for item in value)
