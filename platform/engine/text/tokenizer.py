"""Tokenizer: text to token ids and back, from tokenizer.json and tokenizer_config.json. No transformers, no torch."""

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import tokenizers

NAMED_TOKENS: Final = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer:
    """The tokenizer of a checkpoint. Its methods may be called from several threads."""

    def __init__(self, folder: str | Path) -> None:
        """ValueError when the folder has no tokenizer.json or it cannot be read."""
        path = Path(folder)
        settings = _read_settings(path / "tokenizer_config.json")
        self.backend = _open(path / "tokenizer.json")
        self.named_tokens: dict[str, str] = _named_tokens(settings)
        """bos_token, eos_token, pad_token and unk_token as far as the checkpoint names them, for chat templates."""
        self.special_ids = _special_ids(self.backend)
        self.chat_template = _chat_template(path, settings)
        """Jinja source; None when the checkpoint has none."""
        self.tool_template = _tool_template(path, settings)
        """Of chats with tools, where that is another one."""

    def extended(self, added: Sequence[tokenizers.AddedToken], named_tokens: Mapping[str, str]) -> Self:
        """This tokenizer with tokens added after its last one, in this order, and other named tokens.

        It shares the vocabulary with this one, so it is made in milliseconds and takes little memory.
        """
        other = copy.copy(self)
        other.backend = _sharing_vocabulary(self.backend)
        _add(other.backend, added)
        other.named_tokens = {**self.named_tokens, **named_tokens}
        other.special_ids = _special_ids(other.backend)
        return other

    @property
    def vocab_size(self) -> int:
        """Tokens the tokenizer knows; the model's vocabulary may be padded beyond that."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def eos_token_id(self) -> int | None:
        return self.token_id(self.named_tokens.get("eos_token"))

    def token_id(self, token: str | None) -> int | None:
        return None if token is None else self.backend.token_to_id(token)

    def token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token, None outside the vocabulary."""
        return self.backend.id_to_token(token_id)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Text that spells a special token becomes that token."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_pair(self, first: str, second: str, most: int | None = None) -> "TokenPair":
        """Token ids of two texts in one prompt, as the tokenizer joins them. `most`: so many tokens, by the first ones
        of the longer text, then of both."""
        if most is None:
            encoding = self.backend.encode(first, second)
        else:
            one, other = (self.backend.encode(text, add_special_tokens=False) for text in (first, second))
            room = max(0, most - self.backend.num_special_tokens_to_add(True))
            for text, length in zip((one, other), _shares(len(one), len(other), room), strict=True):
                text.truncate(length)
            encoding = self.backend.post_process(one, other)
        return TokenPair(encoding.ids, encoding.type_ids)

    def cut(self, token_ids: list[int], most: int) -> list[int]:
        """The first tokens of a prompt and the special ones at its end: `most` in all."""
        if len(token_ids) <= most:
            return token_ids
        kept = 0
        while kept < min(most, len(token_ids)) and token_ids[-1 - kept] in self.special_ids:
            kept += 1
        return token_ids[: most - kept] + token_ids[len(token_ids) - kept :]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of the ids; bytes that are no UTF-8 become U+FFFD, ids outside the vocabulary nothing."""
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)


class TokenPair(list[int]):
    """Token ids of two texts in one prompt."""

    def __init__(self, token_ids: list[int], types: list[int]) -> None:
        """types: of the tokens, 1 for the second text's where the tokenizer tells them apart."""
        super().__init__(token_ids)
        self.second_text = types.index(1) if 1 in types else None


def second_text(prompt: list[int]) -> int | None:
    """As of GenerateRequest."""
    return prompt.second_text if isinstance(prompt, TokenPair) else None


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Of two lengths, as far as both fit: as the library cuts the longest first."""
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    return (room - short, short) if first > second else (short, room - short)


def _open(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ValueError(
            f"{path.parent} has no tokenizer.json; save a fast tokenizer there, for example with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path} cannot be read as a tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _sharing_vocabulary(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Another tokenizer of the same parts, so that tokens can be added to it alone."""
    other = tokenizers.Tokenizer(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        setattr(other, part, getattr(backend, part))
    _add(other, [token for _, token in sorted(backend.get_added_tokens_decoder().items())])
    assert other.get_added_tokens_decoder().keys() == backend.get_added_tokens_decoder().keys()
    return other


def _add(backend: tokenizers.Tokenizer, tokens: Sequence[tokenizers.AddedToken]) -> None:
    """The library forgets whether a token is special unless it comes in by the right door."""
    for special, group in itertools.groupby(tokens, key=lambda token: token.special):
        (backend.add_special_tokens if special else backend.add_tokens)(list(group))


def _special_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    return frozenset(token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special)


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a JSON object: {error}") from None


def _named_tokens(settings: dict[str, Any]) -> dict[str, str]:
    found = {name: settings[name] for name in NAMED_TOKENS if settings.get(name)}
    return {name: token if isinstance(token, str) else str(token["content"]) for name, token in found.items()}


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    template = settings.get("chat_template")
    return _listed(template).get("default") if isinstance(template, list) else template


def _tool_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """The template named tool_use, where transformers puts it."""
    file = folder / "additional_chat_templates" / "tool_use.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    template = settings.get("chat_template")
    return _listed(template).get("tool_use") if isinstance(template, list) else None


def _listed(templates: list[dict[str, str]]) -> dict[str, str]:
    return {entry["name"]: entry["template"] for entry in templates}
