"""check_tokenizer: may an adapter's tokenizer files be used on this base? A child reads them, as in preflight."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from loraplex.registry.base import ServedBase
from loraplex.registry.files.adapter_tokenizer import AdapterTokenizer
from loraplex.registry.files.child import ChildFailed, ask_child
from loraplex.registry.report import Finding

from ..units import count_words
from .task import CheckTask, Verdict

TURNS: Final = threading.Semaphore(2)
"""Children at once."""
SECONDS: Final = 30
MEMORY: Final = 4 << 30
"""Bytes of address space of the child: two large vocabularies as JSON, and the base's tokenizer."""
CHECK: Final = "tokenizer"
SWITCH: Final = "the operator can allow them with adapter_tokenizers or LORAPLEX_ADAPTER_TOKENIZERS=true"


@dataclass(frozen=True, slots=True)
class Terms:
    """`allowed`: the operator's switch. `chosen`: a person sent these files; else they lay beside the adapter."""

    allowed: bool
    chosen: bool


def check_tokenizer(
    files: Mapping[str, Path], base: ServedBase, vocab_size: int, terms: Terms
) -> tuple[AdapterTokenizer | None, Finding]:
    """What to serve with, and what to tell. `vocab_size` is the adapter's, 0 for the base's. Blocks."""
    verdict = _ask(files, base, vocab_size or base.signature.vocab_size)
    if verdict.problem is None and verdict.tokenizer is None:
        return None, Finding(CHECK, "pass", "it uses the base's tokenizer and chat template")
    if not terms.allowed:
        return None, _not_allowed(verdict, terms)
    if verdict.tokenizer is None:
        return None, Finding(CHECK, "fail", verdict.problem or "", verdict.remedy)
    problem = _problem_of_template(verdict.tokenizer, verdict.named_tokens)
    if problem is not None:
        return None, Finding(CHECK, "fail", problem, "fix the chat template, or leave it out")
    return verdict.tokenizer, Finding(CHECK, "pass", describe_tokenizer(verdict.tokenizer))


def describe_tokenizer(tokenizer: AdapterTokenizer) -> str:
    """What differs from the base, for people."""
    parts = []
    if tokenizer.added_tokens:
        parts.append(count_words(len(tokenizer.added_tokens), "added token"))
    if tokenizer.chat_template is not None:
        parts.append("own chat template")
    if "eos_token" in tokenizer.named_tokens:
        parts.append(f"answers end with {ascii(tokenizer.named_tokens['eos_token'])[1:-1][:80]}")
    return ", ".join(parts) or "own special tokens"


def _ask(files: Mapping[str, Path], base: ServedBase, vocab_size: int) -> Verdict:
    task = CheckTask({name: str(path) for name, path in files.items()}, str(base.folder), vocab_size, SECONDS, MEMORY)
    try:
        with TURNS:
            answer = ask_child("loraplex.web.adapter_tokenizers.worker", task, SECONDS)
    except ChildFailed as error:
        return Verdict(None, f"the tokenizer files cannot be read: {error}", "leave them out, or save them again")
    return msgspec.json.decode(answer, type=Verdict)


def _problem_of_template(tokenizer: AdapterTokenizer, named_tokens: Mapping[str, str]) -> str | None:
    if tokenizer.chat_template is None:
        return None
    from ..chat_templates.trial import try_template  # jinja2 takes a while, and few adapters need it

    return try_template(tokenizer.chat_template, named_tokens)


def _not_allowed(verdict: Verdict, terms: Terms) -> Finding:
    """Trainers save tokenizers beside every adapter: what nobody chose to send must not stand in the way."""
    what = verdict.problem or f"it brings {describe_tokenizer(verdict.tokenizer or AdapterTokenizer())}"
    if terms.chosen:
        message = f"{what}; this server does not use tokenizers or chat templates from adapters"
        return Finding(CHECK, "fail", message, f"leave these files out to use the base's; {SWITCH}")
    return Finding(CHECK, "warn", f"{what}; the base's tokenizer and chat template are used instead", SWITCH)
