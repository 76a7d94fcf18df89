"""Grammars: compiled once, then followed by as many choices as ask for them."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ..protocol import AddedToken
from .messages import Open
from .vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

MOST_GRAMMARS: Final = 128
MOST_BYTES: Final = 4 << 20
"""Of the texts of the grammars that are kept."""
MOST_VOCABULARIES: Final = 8
"""Each takes some 170 MB for 150,000 tokens, a quarter of it since special tokens are kept out of texts."""
WHITESPACE: Final = r"[\x20\x0A\x0D\x09]{1,40}"
"""Between two marks of JSON. Without a bound, models are known to go on with it until their last token."""
BEGINNING: Final = '{"'
"""Of objects: where one has too many members to choose from, that shows here."""
MOST_REASON: Final = 600
NOT_OURS: Final = "Enable 'coerce_one_of' option to approximate oneOf with anyOf"
"""An option of llguidance that requests do not have."""


class NotCompiled(ValueError):
    """The constraint cannot be used, in llguidance's words."""


class GrammarState:
    """One choice, and what it may draw."""

    def __init__(self, matcher: "LLMatcher", end: int) -> None:
        self._matcher, self._end = matcher, end

    def draw(self, token_id: int) -> None:
        """Raises NotCompiled where the token was not allowed, or following the text went beyond the limits."""
        self._matcher.consume_token(token_id)
        self._check()

    def allowed(self) -> tuple[bytes, bool]:
        """Allowed.tokens and Allowed.complete. Raises NotCompiled."""
        bits = bytearray(self._matcher.compute_bitmask())
        self._check()
        place, bit = self._end // 8, 1 << self._end % 8
        complete = bool(bits[place] & bit)
        bits[place] &= ~bit
        return bytes(bits), complete

    def try_text(self, token_ids: Sequence[int]) -> None:
        """Raises NotCompiled where the text is allowed, and too much may follow it. The choice is of no use then on."""
        if self._matcher.try_consume_tokens(list(token_ids)) == len(token_ids):
            self.allowed()
        self._check()

    def again(self) -> "GrammarState":
        """Another one at the same place."""
        return GrammarState(self._matcher.deep_copy(), self._end)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise NotCompiled(_words(self._matcher.get_error()))


class Grammars:
    """Least recently used ones are dropped beyond the bounds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._vocabularies: OrderedDict[bytes, Vocabulary] = OrderedDict()
        self._compiled: OrderedDict[bytes, tuple[GrammarState, int]] = OrderedDict()
        self._lock = threading.Lock()
        """Of the compiled ones: one thread compiles, another looks for what is known."""

    def known(self, order: Open) -> GrammarState | None:
        """A choice before its first token, where its grammar need not be compiled."""
        return self._take(_key(order))

    def begin(self, order: Open, on_compile: Callable[[], None]) -> GrammarState:
        """A choice before its first token; `on_compile` is called where its grammar is not known yet. Raises
        NotCompiled."""
        key = _key(order)
        known = self._take(key)
        if known is not None:
            return known
        vocabulary = self._vocabulary(order.added_tokens)
        on_compile()
        choice = _compile(order, vocabulary)
        with self._lock:
            self._compiled[key] = choice, len(order.text)
            while len(self._compiled) > MOST_GRAMMARS or sum(size for _, size in self._compiled.values()) > MOST_BYTES:
                self._compiled.popitem(last=False)
        return choice.again()

    def _take(self, key: bytes) -> GrammarState | None:
        with self._lock:
            if key not in self._compiled:
                return None
            self._compiled.move_to_end(key)
            return self._compiled[key][0].again()

    def _vocabulary(self, added: list[AddedToken]) -> Vocabulary:
        key = _tokenizer_key(added)
        if key not in self._vocabularies:
            try:
                self._vocabularies[key] = read_vocabulary(self._folder, added)
            except (ValueError, KeyError, TypeError, OSError) as error:
                raise NotCompiled(f"this model's tokenizer cannot be used for structured output: {error}") from None
        self._vocabularies.move_to_end(key)
        if len(self._vocabularies) > MOST_VOCABULARIES:
            self._vocabularies.popitem(last=False)
        return self._vocabularies[key]


def _tokenizer_key(added: list[AddedToken]) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(added)).digest()


def _key(order: Open) -> bytes:
    parts = _tokenizer_key(order.added_tokens), order.kind, order.text
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()


def _compile(order: Open, vocabulary: Vocabulary) -> GrammarState:
    """With the first mask worked out: some grammars only fail there."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False)
    grammar = _grammar(order, vocabulary)
    choice = GrammarState(LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=limits), vocabulary.end)
    tokens, complete = choice.again().allowed()
    if not complete and not any(tokens):
        raise NotCompiled("no text of this model's tokens satisfies it")
    choice.again().try_text(vocabulary.tokenizer.tokenize_str(BEGINNING))
    return choice


def _grammar(order: Open, vocabulary: Vocabulary) -> str:
    from llguidance import LLMatcher

    match order.kind:
        case "json":
            schema = _json_object(order.text)
            try:
                return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITESPACE})
            except ValueError as error:
                # Python takes numbers without end and halves of characters, llguidance does not.
                raise NotCompiled(f"the schema is not JSON: {error}") from None
        case "regex":
            return LLMatcher.grammar_from_regex(order.text)
        case "choice":
            texts = json.loads(order.text)
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, texts)))
        case "grammar":
            return LLMatcher.grammar_from_lark(vocabulary.by_ids(order.text))
    raise NotCompiled(f"there is no constraint {order.kind!r}")


def _json_object(text: str) -> str:
    """The schema's text without its own options, which would overrule ours."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise NotCompiled(f"the schema is not JSON: {error}") from None
    except RecursionError:
        raise NotCompiled("the schema is nested too deeply") from None
    if not isinstance(schema, dict):
        raise NotCompiled("the schema must be a JSON object")
    schema.pop("x-guidance", None)
    return json.dumps(schema)


def _words(error: str) -> str:
    if error.startswith("NoExtension"):
        return "no text satisfies it"
    text = error.replace("<non-verbose/>", "").replace(NOT_OURS, "Write anyOf in its place").strip()
    return text if len(text) <= MOST_REASON else text[:MOST_REASON] + " ..."
