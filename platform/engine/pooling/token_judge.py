"""A reranker that judges by two tokens: its score is how much likelier the one is than the other after a pair of texts.

As sentence-transformers' LogitScore module says it. No torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..model.config import read_json
from .modules_file import MODULES_FILE, list_modules
from .wanted import PairTemplate

MODULE: Final = "LogitScore"


@dataclass(frozen=True, slots=True)
class TokenJudge:
    true_token: int
    false_token: int | None
    """None: the score is the logit of the other alone."""
    template: PairTemplate


def read_judge(folder: Path, vocab_size: int) -> TokenJudge | None:
    """None for a model that is none. ValueError for one whose tokens are not said."""
    found = [it for it in _modules(folder / MODULES_FILE) if str(it.get("type")).rpartition(".")[2] == MODULE]
    if not found:
        return None
    said = read_json(folder / str(found[0].get("path", "")) / "config.json")
    true_token, false_token = said.get("true_token_id"), said.get("false_token_id")
    for token in (true_token, 0 if false_token is None else false_token):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ValueError(f"{MODULE} must name its tokens by ids below {vocab_size}, got {token!r}")
    return TokenJudge(int(str(true_token)), false_token, _template(folder))


def _modules(path: Path) -> list[dict[str, Any]]:
    """None of a file that cannot be read: that is told where embeddings are asked for."""
    try:
        return list_modules(path) if path.is_file() else []
    except ValueError:
        return []


def _template(folder: Path) -> PairTemplate:
    names, kwargs = (
        _optional(folder / "config_sentence_transformers.json"),
        _optional(folder / "sentence_bert_config.json"),
    )
    prompt = (names.get("prompts") or {}).get(names.get("default_prompt_name") or "", "")
    given = ((kwargs.get("processing_kwargs") or {}).get("chat_template")) or {}
    unknown = sorted(given.keys() - {"add_generation_prompt", "restore_suffix"})
    if unknown:
        raise ValueError(f"sentence_bert_config.json gives the chat template {', '.join(unknown)}: not supported")
    return PairTemplate(system=prompt or "", add_generation_prompt=bool(given.get("add_generation_prompt", False)))


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
