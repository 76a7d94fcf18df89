"""Folders as trainers leave them: the base's tokenizer with tokens added by transformers, its settings and template."""

import json
from pathlib import Path
from typing import Any

from transformers import AddedToken, PreTrainedTokenizerFast

OWN_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|turn|>{{ m.role | upper }}: {{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>ASSISTANT:{% endif %}"
)
ADDED = ("<|turn|>", "<|end|>", "<call>")
"""Two special tokens and one that answers show."""


def save_tokenizer(
    base: Path, folder: Path, template: str | None = OWN_TEMPLATE, **named: str
) -> PreTrainedTokenizerFast:
    """The base's tokenizer with ADDED, written to `folder` by transformers and opened from there."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in ADDED[:2]], special_tokens=True)
    tokenizer.add_tokens([AddedToken(ADDED[2], normalized=False)])
    for name, token in named.items():
        setattr(tokenizer, name, token)
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
