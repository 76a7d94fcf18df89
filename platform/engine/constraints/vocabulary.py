"""The texts of a tokenizer's tokens as llguidance wants them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..protocol import AddedToken

if TYPE_CHECKING:
    from llguidance import LLTokenizer

END: Final = "<|end of the constrained text|>"
"""One token more than the vocabulary: where it is allowed, the text may end. Which tokens do so is known elsewhere."""


def read_vocabulary(folder: Path, added: Sequence[AddedToken]) -> "tuple[LLTokenizer, int]":
    """The tokenizer of the checkpoint in `folder` with further tokens, and the id of END, which is their number.

    Takes about a second for 150,000 tokens, in which no other Python code of the process runs. ValueError when the
    tokenizer cannot be read.
    """
    from llguidance import LLTokenizer

    document: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokens = document.setdefault("added_tokens", [])
    tokens += [msgspec.to_builtins(token) for token in added]
    end = 1 + max([*(token["id"] for token in tokens), *_ids(document["model"]["vocab"])])
    tokens.append(msgspec.to_builtins(AddedToken(id=end, content=END, special=True)))
    return LLTokenizer(json.dumps(document), eos_token=end), end


def _ids(vocabulary: dict[str, int] | list[Any]) -> Sequence[int]:
    """Unigram models have a list."""
    return list(vocabulary.values()) if isinstance(vocabulary, dict) else range(len(vocabulary))
