"""The tokens that a tokenizer.json adds to the base's. All else in it must be the base's.

The file is never opened as a tokenizer: it has regular expressions, and whoever wrote it is a stranger.
"""

import json
from typing import Any, Final

import msgspec
import tokenizers

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.lora.files.strict_json import parse_json
from loraplex.registry.files.adapter_tokenizer import AddedToken

from .files import TOKENIZER_FILE
from .parts import PARTS, differing_parts
from .unfit import Unfit

MAX_TOKENS: Final = 4096
MAX_CONTENT: Final = 256
MAX_CHARS: Final = 1 << 16
"""Characters of all added tokens together: each one costs memory in the matcher."""
MOST_TIMES: Final = 8
"""As large as the base's: line breaks and spaces differ."""
MORE_BYTES: Final = 4 << 20
"""For the added tokens."""
MAX_DEPTH: Final = 16
IGNORED: Final = {"version", "truncation", "padding"}
"""Settings of the training's batches; requests are never cut or padded."""
SAME_BASE: Final = (
    f"use the base's tokenizer and only add tokens with tokenizer.add_tokens(), or leave {TOKENIZER_FILE} out"
)
IN_ORDER: Final = "add tokens with tokenizer.add_tokens() and save the tokenizer again"


def read_added_tokens(data: bytes, base_data: bytes, base: Tokenizer) -> list[AddedToken]:
    """By id; empty for the base's own file. Both arguments are the bytes of a tokenizer.json. Raises Unfit."""
    if data == base_data:
        return []
    if len(data) > MOST_TIMES * len(base_data) + MORE_BYTES:
        raise Unfit(f"{TOKENIZER_FILE} is much larger than the base's ({len(data):,} bytes)", SAME_BASE)
    own, theirs = _parse(data), json.loads(base_data)
    differing = differing_parts(own, theirs)
    if differing:
        raise Unfit(f"{TOKENIZER_FILE} has a different {' and '.join(differing)} from the base's", SAME_BASE)
    known = {token.id: token for token in _tokens(theirs)}
    found = _tokens(own)
    _check_kept(found, known)
    added = sorted((token for token in found if token.id not in known), key=lambda token: token.id)
    _check_bounds(added)
    _check_contents(added, base)
    _check_ids(added, base)
    return added


def as_library_token(token: AddedToken) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )


def _parse(data: bytes) -> dict[str, Any]:
    try:
        own = parse_json(data, MAX_DEPTH)
    except ValueError as error:
        raise Unfit(f"{TOKENIZER_FILE} cannot be read: {error}", "save the tokenizer again and upload that") from None
    unknown = own.keys() - {*PARTS, *IGNORED, "added_tokens"}
    if unknown:
        raise Unfit(f"{TOKENIZER_FILE} has the unknown member {ascii(min(unknown))[:80]}", SAME_BASE)
    return own


def _tokens(document: dict[str, Any]) -> list[AddedToken]:
    try:
        return msgspec.convert(document.get("added_tokens", []), list[AddedToken])
    except msgspec.ValidationError as error:
        raise Unfit(f"added_tokens of {TOKENIZER_FILE} cannot be read: {error}", IN_ORDER) from None


def _check_kept(found: list[AddedToken], known: dict[int, AddedToken]) -> None:
    own = {token.id: token for token in found}
    if len(own) < len(found):
        raise Unfit("two added tokens have the same id", IN_ORDER)
    for token_id, token in known.items():
        if token_id not in own:
            raise Unfit(f"the base's token {_shown(token)} is missing from {TOKENIZER_FILE}", SAME_BASE)
        if own[token_id] != token:
            raise Unfit(f"the base's token {_shown(token)} was changed", SAME_BASE)


def _check_bounds(added: list[AddedToken]) -> None:
    if len(added) > MAX_TOKENS:
        raise Unfit(f"it adds {len(added):,} tokens; at most {MAX_TOKENS:,} can be served", "add fewer tokens")
    wrong = next((token for token in added if not 1 <= len(token.content) <= MAX_CONTENT), None)
    if wrong is not None:
        problem = f"the added token {_shown(wrong)} has {len(wrong.content):,} characters"
        raise Unfit(f"{problem}; 1 to {MAX_CONTENT} can be served", "add shorter tokens")
    chars = sum(len(token.content) for token in added)
    if chars > MAX_CHARS:
        raise Unfit(f"its added tokens have {chars:,} characters; at most {MAX_CHARS:,} can be served", "add fewer")


def _check_contents(added: list[AddedToken], base: Tokenizer) -> None:
    seen: set[str] = set()
    for token in added:
        known = base.token_id(token.content)
        if known is not None:
            raise Unfit(f"the added token {_shown(token)} is the base's token {known} already", IN_ORDER)
        if token.content in seen:
            raise Unfit(f"the added token {_shown(token)} appears twice", IN_ORDER)
        seen.add(token.content)


def _check_ids(added: list[AddedToken], base: Tokenizer) -> None:
    """The ids are those that the library gives, here and in every other program that opens the file."""
    extended = base.extended([as_library_token(token) for token in added], {})
    for token in added:
        given = extended.token_id(token.content)
        if given != token.id:
            problem = f"the added token {_shown(token)} has id {token.id}, but would get {given}"
            raise Unfit(f"{problem}: ids follow one another after the base's last", IN_ORDER)


def _shown(token: AddedToken) -> str:
    return ascii(token.content if len(token.content) <= 40 else token.content[:37] + "...")
