"""Fields: typed access to a raw adapter_config.json, whose every value may be anything."""

import re
from typing import Any, Final

from .manifest import EMBEDDING, HEAD
from .report import Report, enumerate_some, quote

MAX_RANK: Final = 512
MAX_ALPHA: Final = 1 << 16
MAX_NAMES: Final = 4096
MAX_TOKENS: Final = 1 << 16
"""Rows of single tokens that an adapter may bring."""
BIASES: Final = ("none", "all", "lora_only")
NAMES_REMEDY: Final = 'give a list of literal names, e.g. "target_modules": ["q_proj", "v_proj"], or "all-linear"'

_LITERAL: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,255}")


class Fields:
    """What does not fit is reported and replaced by a harmless value."""

    def __init__(
        self, raw: dict[str, Any], report: Report, embeddings: frozenset[str] = frozenset({EMBEDDING})
    ) -> None:
        """embeddings: what the base's embedding may be called, besides EMBEDDING."""
        self.raw, self.report, self.embeddings = raw, report, embeddings

    def rank(self, value: object, where: str) -> int:
        if type(value) is int and 1 <= value <= MAX_RANK:
            return value
        self.report.fail("config", f"{where} is {quote(value)}; supported ranks are 1 to {MAX_RANK}")
        return 1

    def alpha(self, value: object, where: str) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < abs(value) <= MAX_ALPHA:
            return float(value)
        self.report.fail("config", f"{where} is {quote(value)}; it must be a number other than 0, up to {MAX_ALPHA}")
        return 1.0

    def flag(self, key: str) -> bool:
        value = self.raw.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        self.report.fail("config", f"{key} is {quote(value)}; it must be true or false")
        return False

    def trains_biases(self) -> bool:
        value = self.raw.get("bias", "none")
        if value is not None and value not in BIASES:
            self.report.fail("config", f"bias is {quote(value)}; it must be one of {', '.join(BIASES)}")
        return value not in ("none", None)

    def target_modules(self) -> frozenset[str] | None:
        value = self.raw.get("target_modules")
        if value in (None, []):
            self.report.fail("config", "target_modules is empty", NAMES_REMEDY)
        return None if value == "all-linear" else self.names("target_modules")

    def names(self, key: str) -> frozenset[str]:
        value = self.raw.get(key)
        if value is None:
            return frozenset()
        if not isinstance(value, list) or len(value) > MAX_NAMES:
            self.report.fail("config", f"{key} is {quote(value)}: patterns are not supported", NAMES_REMEDY)
            return frozenset()
        odd = [quote(name) for name in value if not _is_literal(name)]
        if odd:
            self.report.fail(
                "config", f"{key} holds {enumerate_some(odd)}, which are not literal module names", NAMES_REMEDY
            )
        return frozenset(name for name in value if _is_literal(name))

    def pattern(self, key: str) -> dict[str, Any]:
        value = self.raw.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict) or len(value) > MAX_NAMES:
            self.report.fail("config", f"{key} is {quote(value)}; it must map module names to numbers")
            return {}
        odd = [quote(name) for name in value if not _is_literal(name.removeprefix("^"))]
        if odd:
            remedy = "write out each module's name as a key of its own"
            self.report.fail("config", f"{key} has the keys {enumerate_some(odd)}: patterns are not supported", remedy)
        return value

    def trained_tokens(self) -> dict[str, tuple[int, ...]]:
        """Of the kind that is nothing else: target_modules names the ends, of which none means the embedding."""
        ends = self.raw.get("target_modules") or [EMBEDDING]
        names, tokens = [ends] if isinstance(ends, str) else ends, self.raw.get("token_indices")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            self.report.fail("config", f"target_modules is {quote(ends)}; it must name embed_tokens or lm_head")
            return {}
        return self._rows_by_end("token_indices", dict.fromkeys(names, tokens))

    def token_indices(self) -> dict[str, tuple[int, ...]]:
        """A list alone is of the embedding."""
        key = "trainable_token_indices"
        return self._rows_by_end(key, self.raw.get(key))

    def _rows_by_end(self, key: str, value: object) -> dict[str, tuple[int, ...]]:
        lists = {EMBEDDING: value} if isinstance(value, list) else value or {}
        if not isinstance(lists, dict) or not set(lists) <= {EMBEDDING, HEAD, *self.embeddings}:
            name = min(self.embeddings, key=len)
            self.report.fail("config", f"{key} is {quote(value)}; it must be token ids, or ids by {name}, {HEAD}")
            return {}
        for tokens in lists.values():
            if not isinstance(tokens, list) or not 0 < len(tokens) <= MAX_TOKENS or not _are_tokens(tokens):
                words = f"{key} is {quote(value)}; it must be up to {MAX_TOKENS} different token ids"
                self.report.fail("config", words)
                return {}
        return {name: tuple(tokens) for name, tokens in lists.items()}

    def layers(self) -> frozenset[int] | None:
        value = self.raw.get("layers_to_transform")
        indices = [value] if type(value) is int else value
        if indices is None or indices == []:
            return None
        if isinstance(indices, list) and all(type(index) is int and index >= 0 for index in indices):
            return frozenset(indices)
        self.report.fail("config", f"layers_to_transform is {quote(value)}; it must be layer numbers")
        return None


def _are_tokens(values: list[object]) -> bool:
    return all(type(value) is int and value >= 0 for value in values) and len(set(values)) == len(values)


def _is_literal(name: object) -> bool:
    return isinstance(name, str) and _LITERAL.fullmatch(name) is not None
