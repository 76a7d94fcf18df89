"""What makes two KV blocks the same: a chain of hashes over everything their content depends on.

    root  = SHA-256(schema, salt, base fingerprint, then digest and scale of each adapter)
    block = SHA-256(hash of the block before, its tokens)

Every field is encoded as tag, length, payload, so different fields never encode to the same bytes.
"""

import hashlib
import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from .protocol import AdapterRef

SCHEMA_VERSION = 2


class BlockKey(NamedTuple):
    """Identity of one full block. The tokens are compared on a hit; the hash alone is never trusted."""

    hash: bytes
    tokens: bytes


def encode(*fields: str | bytes | int | float | None) -> bytes:
    """Injective encoding of a row of typed fields; int 1, float 1.0 and "1" stay apart."""
    return b"".join(_encode_field(field) for field in fields)


def root_hash(salt: str, fingerprint: str, adapters: Sequence[AdapterRef]) -> bytes:
    """Start of a chain. `fingerprint` names the base weights and how they are quantized."""
    fields = [field for adapter in adapters for field in (adapter.digest, adapter.scale)]
    return hashlib.sha256(encode(SCHEMA_VERSION, salt, fingerprint, *fields)).digest()


def block_key(parent: bytes, token_ids: Sequence[int]) -> BlockKey:
    """Key of the block that holds these tokens after the chain that ends with `parent`."""
    tokens = array("q", token_ids).tobytes()
    return BlockKey(hashlib.sha256(encode(parent, tokens)).digest(), tokens)


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
