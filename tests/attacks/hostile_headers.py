"""Headers that lie, over DATA bytes of zeros: JSON that two parsers read in two ways, and tensors that cannot be."""

import json
from collections.abc import Iterator
from typing import Any

from tests.lora.adapters import encode, make_tensors, tensor_name

from .hostile_files import Case

Q_A, Q_B = tensor_name(0, "q_proj", "A"), tensor_name(0, "q_proj", "B")
DATA = 2 * (4 * (16 + 24) + 4 * (40 + 16)) * 4
"""Bytes of the tensors of make_tensors()."""


def hostile_headers() -> Iterator[Case]:
    yield from hostile_syntax()
    yield from hostile_metadata()
    yield from hostile_names()
    yield from hostile_entries()
    yield from hostile_places()


def hostile_syntax() -> Iterator[Case]:
    good = header({})
    yield "not-an-object", "does not begin with '{'", b"[]"
    yield "leading-space", "does not begin with '{'", b" " + good
    yield "byte-order-mark", "does not begin with '{'", b"\xef\xbb\xbf" + good
    yield "not-utf8", "not UTF-8", b'{"\xff\xfe": 1}'
    yield "overlong-utf8", "not UTF-8", b'{"\xc0\xaf": 1}'
    yield "surrogate-as-utf8", "not UTF-8", b'{"\xed\xa0\x80": 1}'
    yield "utf16", "it is not JSON", good.decode().encode("utf-16-le")
    yield "not-json", "it is not JSON", b"{not json}"
    yield "single-quotes", "it is not JSON", good.replace(b'"', b"'")
    yield "trailing-comma", "it is not JSON", good[:-1] + b",}"
    yield "comment", "it is not JSON", b"{/* */" + good[1:]
    yield "two-documents", "it is not JSON", good + good
    yield "padded-with-nul", "it is not JSON", good + bytes(8)
    yield "hexadecimal", "it is not JSON", good.replace(b"[0, ", b"[0x0, ", 1)
    yield "leading-zeros", "it is not JSON", good.replace(b"[0, ", b"[00, ", 1)
    yield "escaped-quotes", "it is not JSON", b'{"' + b'\\"' * 30_000
    yield "no-tensors", "it holds no tensors", b"{}"
    yield "600-deep", "nested more than 3", b'{"a":' * 600 + b"1" + b"}" * 600
    yield "four-deep", "nested more than 3", header({Q_A: entry() | {"shape": [[4, 16]]}})
    yield "open-brackets", "nested more than 3", b'{"a":' + b"[" * 60_000
    yield "duplicate-name", "appears twice", good[:-1] + b',"' + Q_A.encode() + b'":{}}'
    yield "duplicate-by-escape", "appears twice", good[:-1] + b',"\\u0062' + Q_A[1:].encode() + b'":{}}'
    yield "duplicate-field", "appears twice", good.replace(b'"dtype"', b'"dtype": "F32", "dtype"', 1)
    yield "duplicate-metadata", "appears twice", b'{"__metadata__":{},"__metadata__":{},' + good[1:]
    yield "nan", "NaN is not a JSON number", b'{"a": NaN}'
    yield "infinity", "Infinity is not a JSON number", b'{"a": [-Infinity]}'
    yield "huge-exponent", "too large", b'{"a": 1e999}'
    yield "60000-digits", "60000 digits", b'{"a": ' + b"9" * 60_000 + b"}"
    yield "surrogate", "surrogate", b'{"\\ud800": 1}'
    yield "nul", "NUL", b'{"a\\u0000": 1}'


def hostile_metadata() -> Iterator[Case]:
    for name, metadata in (("number", {"a": 1}), ("object", {"a": {}}), ("null", {"a": None})):
        yield f"metadata-{name}", "__metadata__ in its header is not a map", header({"__metadata__": metadata})
    yield "metadata-list", "__metadata__ in its header is not a map", header({"__metadata__": ["a"]})
    yield "metadata-only", "it holds no tensors", b'{"__metadata__": {"format": "pt"}}'


def hostile_names() -> Iterator[Case]:
    names = {
        "parent-folder": "../../etc/passwd",
        "absolute": "/etc/passwd",
        "windows": "C:\\windows\\system32",
        "home": "~/.ssh/authorized_keys",
        "percent": "%2e%2e%2fetc",
        "empty": "",
        "long": "a" * 257,
        "line-break": Q_A + "\n",
        "terminal": "\x1b[2J\x1b]0;owned\x07",
        "markup": "<script>alert(1)</script>",
        "template": "{{ 7 * 7 }}",
        "sql": "'; DROP TABLE adapters; --",
        "shell": "$(touch owned)",
        "right-to-left": "\u202e" + Q_A,
        "cyrillic": Q_A.replace("a", "\u0430", 1),
        "full-width": "\uff21",
        "emoji": "\U0001f600",
    }
    for name, tensor in names.items():
        yield (
            f"name-{name}",
            "is not a valid name: tensor names contain letters",
            header({tensor: entry(DATA, DATA + 256)}),
        )
    yield "name-nul", "NUL", header({Q_A + "\0.txt": entry(DATA, DATA + 256)})


def hostile_entries() -> Iterator[Case]:
    for dtype in ("F64", "F8_E4M3", "F8_E5M2", "F4", "I64", "I32", "I8", "U8", "BOOL", "C64", "f32", "O", "", "F32 "):
        yield (
            f"dtype-{dtype or 'empty'}".replace(" ", "-space"),
            f"has dtype {dtype!r}",
            header({Q_A: entry(dtype=dtype)}),
        )
    for name, dtype in (("list", ["F32"]), ("null", None), ("number", 4), ("object", {"F32": 1})):
        yield f"dtype-{name}", f"has dtype {dtype!r}", header({Q_A: entry(dtype=dtype)})
    for name, shape in SHAPES.items():
        yield f"shape-{name}", "not a list of 1 to 8 whole numbers", header({Q_A: entry(shape=shape)})
    for name, offsets in OFFSETS.items():
        yield f"offsets-{name}", "not two whole numbers", header({Q_A: entry(data_offsets=offsets)})
    for name, value in (("list", [1, 2]), ("text", "F32"), ("true", True), ("number", 0), ("empty", {})):
        yield f"entry-{name}", "is not described by exactly", header({Q_A: value})
    for field in entry():
        without = {key: value for key, value in entry().items() if key != field}
        yield f"entry-without-{field}", "is not described by exactly", header({Q_A: without})
    yield "entry-with-extras", "is not described by exactly", header({Q_A: entry(strides=[1])})


SHAPES: dict[str, Any] = {
    "negative": [-4, -16],
    "boolean": [True, 64],
    "fraction": [4.0, 16.0],
    "text": ["4", "16"],
    "null": None,
    "number": 64,
    "object": {"0": 4},
    "scalar": [],
    "nine-dimensions": [1] * 8 + [64],
    "60000-dimensions": [1] * 20_000,
}
OFFSETS: dict[str, Any] = {
    "negative": [-256, 0],
    "fraction": [0.0, 256.0],
    "text": ["0", "256"],
    "boolean": [False, 256],
    "none": [],
    "one": [256],
    "three": [0, 128, 256],
    "null": None,
    "object": {"start": 0, "end": 256},
}


def hostile_places() -> Iterator[Case]:
    yield "overflowing-shape", "bytes for its shape", header({Q_A: entry(shape=[1 << 62, 1 << 62])})
    yield "wraps-around-64-bits", "bytes for its shape", header({Q_A: entry(shape=[(1 << 60) + 1, 64])})
    yield "zero-dimension", "is empty", header({Q_A: entry(0, 0, shape=[4, 0])})
    yield "shape-larger-than-bytes", "bytes for its shape", header({Q_A: entry(shape=[400, 16])})
    yield "shape-smaller-than-bytes", "bytes for its shape", header({Q_A: entry(shape=[4, 15])})
    yield "half-the-bytes", "bytes for its shape", header({Q_A: entry(dtype="F16")})
    yield "backward-offsets", "bytes for its shape", header({Q_A: entry(256, 0)})
    yield "offsets-of-40-digits", "bytes for its shape", header({Q_A: entry(0, 10**39)})
    yield "overlap", "overlaps the tensor before it", header({Q_B: entry(128, 512, shape=[24, 4])})
    yield "overlap-by-one-byte", "overlaps the tensor before it", header({Q_B: entry(255, 639, shape=[24, 4])})
    yield "all-in-one-place", "overlaps the tensor before it", header(dict.fromkeys(json.loads(header({})), entry()))
    yield "hole", "leaves a gap before it", header({Q_A: None})
    yield "hole-of-four-bytes", "leaves a gap before it", header({Q_B: entry(260, 644, shape=[24, 4])})
    yield "beyond-the-end", "it is cut off", header({"z": entry(DATA, DATA + 256)})
    yield "far-beyond-the-end", "leaves a gap before it", header({"z": entry(1 << 62, (1 << 62) + 256)})


def entry(start: int = 0, end: int = 256, **changes: Any) -> dict[str, Any]:
    """By default that of Q_A."""
    return {"dtype": "F32", "shape": [4, 16], "data_offsets": [start, end]} | changes


def header(changes: dict[str, Any]) -> bytes:
    """The header of make_tensors() with some entries changed, added or (None) left out."""
    weights = encode(make_tensors())
    entries = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
    return json.dumps({name: value for name, value in (entries | changes).items() if value is not None}).encode()
