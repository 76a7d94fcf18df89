"""What makes two KV blocks the same: a chain of hashes over everything their content depends on.

    root  = SHA-256(schema, salt, base fingerprint)
    block = SHA-256(hash of the block before, its tokens, then digest, scale and first token of the adapters)

Adapters stand in the block in which one of them begins: all that act by then, in the order in which they are summed.
What comes before the first token of every adapter is the base's own, whoever asks. Every field is encoded as tag,
length, payload, so different fields never encode to the same bytes.
"""

import hashlib
import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

SCHEMA_VERSION = 3


class Acting(NamedTuple):
    """An adapter, and the position of the first token that it acts on."""

    digest: str
    scale: float
    start: int


class BlockKey(NamedTuple):
    """Identity of one full block. The tokens are compared on a hit; the hash alone is never trusted."""

    hash: bytes
    tokens: bytes


def encode(*fields: str | bytes | int | float | None) -> bytes:
    """Injective encoding of a row of typed fields; int 1, float 1.0 and "1" stay apart."""
    return b"".join(_encode_field(field) for field in fields)


def root_hash(salt: str, fingerprint: str) -> bytes:
    """Start of a chain. `fingerprint` names the base weights and how they are quantized."""
    return hashlib.sha256(encode(SCHEMA_VERSION, salt, fingerprint)).digest()


def block_key(parent: bytes, token_ids: Sequence[int], adapters: Sequence[Acting] = ()) -> BlockKey:
    """Key of the block that holds these tokens after the chain that ends with `parent`.

    `adapters`: all that act on it, when one of them begins in it; otherwise none.
    """
    tokens = array("q", token_ids).tobytes()
    fields = [field for adapter in adapters for field in adapter]
    return BlockKey(hashlib.sha256(encode(parent, tokens, *fields)).digest(), tokens)


def _encode_field(field: str | bytes | int | float | None) -> bytes:
    match field:
        case None:
            tag, payload = b"n", b""
        case str():
            tag, payload = b"s", field.encode("utf-8", "surrogatepass")
        case bytes():
            tag, payload = b"b", field
        case int():
            tag, payload = b"i", str(field).encode()
        case float():
            tag, payload = b"f", struct.pack(">d", field)
    return tag + struct.pack(">Q", len(payload)) + payload
