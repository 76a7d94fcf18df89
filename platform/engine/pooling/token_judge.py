"""A reranker that judges by two tokens: its score is how much likelier the one is than the other after a pair of texts.

As sentence-transformers' LogitScore module says it, or vLLM's `classifier_from_token`. No torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..model.config import SENTENCE_CONFIG, read_json
from .modules_file import MODULES_FILE, default_prompt, list_modules
from .wanted import PairTemplate

MODULE: Final = "LogitScore"
TOKENS: Final = "classifier_from_token"
"""The false one and the true one, in config.json or a setting."""
SOFTMAX: Final = {"is_original_qwen3_reranker": True, "method": "from_2_way_softmax"}
"""Either of them says that the score is made of two tokens' logits."""
CLASSIFIER: Final = "ForSequenceClassification"


@dataclass(frozen=True, slots=True)
class TokenJudge:
    true_token: int
    false_token: int | None
    """None: the score is the logit of the other alone."""
    template: PairTemplate | None
    """None: the tokenizer joins pairs."""


def read_judge(folder: Path, vocab_size: int, asked: Sequence[str] = ()) -> TokenJudge | None:
    """None for a model that is none. `asked`: the two tokens, by whoever starts it. ValueError for one whose tokens are
    not said."""
    config = _optional(folder / "config.json")
    if any(str(name).endswith(CLASSIFIER) for name in config.get("architectures") or ()):
        if asked:
            raise ValueError(f"{TOKENS} is for a model without a head of its own; this one has one. Leave it out")
        return None
    if asked:
        return _by_tokens(folder, asked)
    found = [it for it in _modules(folder / MODULES_FILE) if str(it.get("type")).rpartition(".")[2] == MODULE]
    if not found:
        return _by_tokens(folder, tokens_of(config)) if TOKENS in config else None
    said = read_json(folder / str(found[0].get("path", "")) / "config.json")
    true_token, false_token = said.get("true_token_id"), said.get("false_token_id")
    for token in (true_token, 0 if false_token is None else false_token):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ValueError(f"{MODULE} must name its tokens by ids below {vocab_size}, got {token!r}")
    return TokenJudge(int(str(true_token)), false_token, _template(folder))


def tokens_of(said: Mapping[str, Any]) -> list[str]:
    """Of config.json, or of what overrides it. ValueError for tokens that make no score."""
    tokens = said.get(TOKENS)
    if not isinstance(tokens, list) or len(tokens) != 2 or not all(isinstance(token, str) for token in tokens):
        raise ValueError(f"{TOKENS} must be two tokens, the false one and the true one, got {tokens!r}")
    if not any(said.get(name) == value for name, value in SOFTMAX.items()):
        ways = " or ".join(f"{name}: {value}" for name, value in SOFTMAX.items())
        raise ValueError(f"{TOKENS} is read with {ways} alone; other methods are not supported")
    return tokens


def tokens_of_overrides(overrides: Any) -> list[str]:
    """Of vLLM's hf_overrides, which may say nothing else here; empty: they say nothing. ValueError otherwise."""
    if not overrides:
        return []
    if not isinstance(overrides, dict):
        raise ValueError(f"hf_overrides must be an object, got {overrides!r}")
    others = sorted(overrides.keys() - {TOKENS, "architectures", *SOFTMAX})
    if others:
        raise ValueError(f"hf_overrides: {others[0]} is not supported: change config.json in the model's folder")
    kinds = overrides.get("architectures", [CLASSIFIER])
    if not isinstance(kinds, list) or not all(str(kind).endswith(CLASSIFIER) for kind in kinds):
        raise ValueError(f"hf_overrides: architectures {kinds!r} is not supported: it may only name one {CLASSIFIER}")
    return tokens_of(overrides)


def _by_tokens(folder: Path, tokens: Sequence[str]) -> TokenJudge:
    if len(tokens) != 2:
        raise ValueError(f"{TOKENS} must be two tokens, the false one and the true one, got {', '.join(tokens)}")
    from tokenizers import Tokenizer  # no command without such a model waits for it

    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = list[int]()
    for token in tokens:
        id = vocabulary.token_to_id(token)
        if id is None:
            raise ValueError(f"{TOKENS} names {token!r}, which is no token of the model")
        ids.append(id)
    false_token, true_token = ids
    return TokenJudge(true_token, false_token, None)


def _modules(path: Path) -> list[dict[str, Any]]:
    """None of a file that cannot be read: that is told where embeddings are asked for."""
    try:
        return list_modules(path) if path.is_file() else []
    except ValueError:
        return []


def _template(folder: Path) -> PairTemplate:
    kwargs = _optional(folder / SENTENCE_CONFIG)
    given = ((kwargs.get("processing_kwargs") or {}).get("chat_template")) or {}
    unknown = sorted(given.keys() - {"add_generation_prompt", "restore_suffix"})
    if unknown:
        raise ValueError(f"{SENTENCE_CONFIG} gives the chat template {', '.join(unknown)}: not supported")
    added = bool(given.get("add_generation_prompt", False))
    return PairTemplate(system=default_prompt(folder), add_generation_prompt=added)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
