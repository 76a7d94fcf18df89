"""Conversations as prompts, by the chat template of transformers' tokenizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
"""`role` and `content`."""


def transformers_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """Imports transformers, which takes a second or more."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder))
    return tokenizer


def chat_prompts(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Sequence[Message] | Sequence[Sequence[Message]],
    **template: Any,
) -> list[list[int]]:
    """Token ids of one conversation or of many. `template`: keywords of apply_chat_template(). ValueError says which
    conversation its template refuses, and why."""
    if not messages:
        raise ValueError("messages is empty; give a conversation, or a list of them")
    many = messages if not isinstance(messages[0], Mapping) else [messages]
    if template.get("chat_template") is None and tokenizer.chat_template is None:
        raise ValueError("the model has no chat template; give one as chat_template, or use generate()")
    return [_prompt(tokenizer, place, conversation, template) for place, conversation in enumerate(many)]


def _prompt(
    tokenizer: "PreTrainedTokenizerBase", place: int, conversation: Any, template: Mapping[str, Any]
) -> list[int]:
    if not conversation or not all(isinstance(message, Mapping) and "role" in message for message in conversation):
        raise ValueError(f"conversation {place} must be a list of messages, each a dict with role and content")
    try:
        text = tokenizer.apply_chat_template(list(conversation), tokenize=False, **template)
    except Exception as error:  # a template raises what it likes
        raise ValueError(f"the chat template refuses conversation {place}: {error}") from error
    # The template has written the special tokens that begin a text.
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
