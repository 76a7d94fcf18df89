"""read_tokenizer: from the files beside an adapter to what differs from the base."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loraplex.engine.text.tokenizer import NAMED_TOKENS, Tokenizer
from loraplex.lora.files.strict_json import parse_json
from loraplex.registry.files.adapter_tokenizer import AdapterTokenizer, AddedToken

from .added_tokens import MAX_CONTENT, MAX_DEPTH, as_library_token, read_added_tokens
from .files import SETTINGS_FILE, TEMPLATE_FILE, TOKENIZER_FILE, TOKENIZER_LIMITS
from .unfit import Unfit

SAVE_AGAIN: Final = "save the tokenizer again with tokenizer.save_pretrained() and upload that"
VISIBLE_IN_BASE_TEMPLATE: Final = ("bos_token", "eos_token")
"""Trainers set the others as they need them for batches."""


@dataclass(frozen=True, slots=True)
class Base:
    """What tokenizer files are compared with."""

    folder: Path
    tokenizer: Tokenizer
    vocab_size: int
    """Rows there are for token ids, those that the adapter brings included."""


def read_tokenizer(files: Mapping[str, Path], base: Base) -> AdapterTokenizer | None:
    """None when these files, whichever there are, change nothing. Raises Unfit."""
    settings = _read_settings(files)
    added = _read_added(files, settings, base)
    template = _own_template(_read_template(files, settings), base.tokenizer)
    named = _named_tokens(settings, base.tokenizer)
    _check_end(named, added, base.tokenizer)
    if not added and template is None:
        named = {name: token for name, token in named.items() if name in VISIBLE_IN_BASE_TEMPLATE}
    return AdapterTokenizer(added, template, named) if added or template is not None or named else None


def _read_added(files: Mapping[str, Path], settings: dict[str, Any], base: Base) -> list[AddedToken]:
    if TOKENIZER_FILE not in files:
        _check_no_tokens(settings, base.tokenizer)
        return []
    own, theirs = files[TOKENIZER_FILE].read_bytes(), (base.folder / TOKENIZER_FILE).read_bytes()
    added = read_added_tokens(own, theirs, base.tokenizer)
    if added and added[-1].id >= base.vocab_size:
        problem = f"the added token {ascii(added[-1].content)[:80]} has id {added[-1].id}, but base and adapter have"
        remedy = "train with modules_to_save or trainable_token_indices after resize_token_embeddings(), and save again"
        raise Unfit(f"{problem} rows for {base.vocab_size} token ids", remedy)
    return added


def _check_end(named: dict[str, str], added: list[AddedToken], tokenizer: Tokenizer) -> None:
    extended = tokenizer.extended([as_library_token(token) for token in added], named)
    if "eos_token" in named and extended.eos_token_id is None:
        problem = f"{SETTINGS_FILE} names eos_token {ascii(named['eos_token'])[:80]}, which is not a token"
        raise Unfit(problem, f"upload the {TOKENIZER_FILE} that has it, or name another one")


def _read_settings(files: Mapping[str, Path]) -> dict[str, Any]:
    if SETTINGS_FILE not in files:
        return {}
    try:
        return parse_json(files[SETTINGS_FILE].read_bytes(), MAX_DEPTH)
    except ValueError as error:
        raise Unfit(f"{SETTINGS_FILE} cannot be read: {error}", SAVE_AGAIN) from None


def _check_no_tokens(settings: dict[str, Any], tokenizer: Tokenizer) -> None:
    """A list of tokens alone does not say how they are matched with the base's."""
    listed = settings.get("added_tokens_decoder")
    for token_id in listed if isinstance(listed, dict) else {}:
        if not token_id.isdecimal() or tokenizer.token(int(token_id)) is None:
            problem = f"{SETTINGS_FILE} lists a token with id {ascii(token_id)[:40]}, which the base does not have"
            raise Unfit(problem, f"upload {TOKENIZER_FILE} as well")


def _read_template(files: Mapping[str, Path], settings: dict[str, Any]) -> str | None:
    if TEMPLATE_FILE not in files:
        return _template_in(settings)
    try:
        text = files[TEMPLATE_FILE].read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unfit(f"{TEMPLATE_FILE} is not UTF-8 text (byte {error.start})", SAVE_AGAIN) from None
    if "\0" in text:
        raise Unfit(f"{TEMPLATE_FILE} holds a NUL character", SAVE_AGAIN)
    return text


def _template_in(settings: dict[str, Any]) -> str | None:
    """A text, or a list of named ones of which `default` is meant."""
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = [entry for entry in found if isinstance(entry, dict) and entry.get("name") == "default"]
        found = named[0].get("template") if named else None
    if found is not None and not isinstance(found, str):
        raise Unfit(f"chat_template in {SETTINGS_FILE} is not text", SAVE_AGAIN)
    limit = TOKENIZER_LIMITS[TEMPLATE_FILE]
    if found is not None and len(found) > limit:
        raise Unfit(f"the chat template has {len(found):,} characters; at most {limit:,} can be served", "shorten it")
    return found


def _own_template(template: str | None, tokenizer: Tokenizer) -> str | None:
    """Jinja leaves out one line break at the end, so files that differ in it are the same."""
    theirs = tokenizer.chat_template
    if template is None or (theirs is not None and template.removesuffix("\n") == theirs.removesuffix("\n")):
        return None
    return template


def _named_tokens(settings: dict[str, Any], tokenizer: Tokenizer) -> dict[str, str]:
    """Those that are named and are not the base's."""
    named = {}
    for name in NAMED_TOKENS:
        token = settings.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if token is None or token == tokenizer.named_tokens.get(name):
            continue
        if not isinstance(token, str) or not 1 <= len(token) <= MAX_CONTENT:
            raise Unfit(f"{name} in {SETTINGS_FILE} is not text of 1 to {MAX_CONTENT} characters", SAVE_AGAIN)
        named[name] = token
    return named
