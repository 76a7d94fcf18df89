"""TokenText: what one token stands for, as text and as bytes; for log-probabilities."""

from collections.abc import Callable
from functools import lru_cache

from tokenizers.decoders import ByteLevel

from loraplex.engine.text.tokenizer import Tokenizer

SPACE = "▁"
"""Sentencepiece's spelling of a space."""


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: itself, or the next free one from U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


ALPHABET = _byte_alphabet()


class TokenText:
    """`base`: of the tokenizer that this one extends; its tokens are looked up there."""

    def __init__(self, tokenizer: Tokenizer, base: "TokenText | None" = None) -> None:
        self._tokenizer = tokenizer
        self._byte_level = _is_byte_level(tokenizer)
        self._added = {i: token.content for i, token in tokenizer.backend.get_added_tokens_decoder().items()}
        self._base = base
        self.of: Callable[[int], tuple[str, bytes]] = lru_cache(maxsize=65536)(self._of) if base is None else self._of
        """Token id to (text, bytes). Half a character is U+FFFD in the text, and whole in the bytes."""

    def _of(self, token_id: int) -> tuple[str, bytes]:
        if token_id in self._added:
            return self._added[token_id], self._added[token_id].encode()
        if self._base is not None:
            return self._base.of(token_id)
        raw = self._bytes(self._tokenizer.token(token_id) or "")
        return raw.decode(errors="replace"), raw

    def _bytes(self, spelling: str) -> bytes:
        if self._byte_level:
            return bytes(ALPHABET[character] for character in spelling)
        if len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">"):
            return bytes.fromhex(spelling[3:5])
        return spelling.replace(SPACE, " ").encode()


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    decoder = tokenizer.backend.decoder
    return isinstance(decoder, ByteLevel) or "ByteLevel" in repr(decoder)
