"""Lines of an input file: read one by one, and what of one is wrong before its body is looked at."""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ..http.json_body import unique_members
from .answers import BatchError

MOST_ID: Final = 512
"""Characters of a custom_id."""
MOST_ERRORS: Final = 100
"""That a batch which fails tells."""
BESIDE_BODY: Final = 64 << 10
"""Bytes that a line may have beside its body."""
REST_LINES, REST_SECONDS = 64, 0.0005
"""Reading gives way to requests now and then."""
MARK: Final = b"\xef\xbb\xbf"


class _Sent(msgspec.Struct):
    custom_id: Any = UNSET
    method: Any = UNSET
    url: Any = UNSET
    body: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    stream: Any = False


_sent, _body = msgspec.json.Decoder(_Sent), msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class Line:
    """`number`: in its file, from 1. `custom_id` None: it has none that can be told. `problem`: why it cannot be
    asked."""

    number: int
    custom_id: str | None
    url: str = ""
    body: bytes = b""
    problem: BatchError | None = None


@dataclass(slots=True)
class Verdict:
    """`total`: lines. `errors`: why nothing of the file can run."""

    total: int = 0
    errors: list[BatchError] = field(default_factory=list)


def read_lines(path: Path, endpoints: Sequence[str], most_body: int) -> Iterator[Line]:
    """All that are not blank. Blocks for the time of a disk read."""
    most = most_body + BESIDE_BODY
    with path.open("rb") as file:
        number = 0
        while text := file.readline(most + 1):
            number += 1
            if len(text) > most and not text.endswith(b"\n"):
                _skip_rest(file, most)
                yield _wrong(number, None, "line_too_long", f"the line has more than {most:,} bytes.")
            elif number == 1 and text.startswith(MARK):
                text = text.removeprefix(MARK)
                if text.strip():
                    yield read_line(number, text, endpoints)
            elif text.strip():
                yield read_line(number, text, endpoints)


def read_line(number: int, text: bytes, endpoints: Sequence[str]) -> Line:
    """`endpoints`: of which the line may name one."""
    try:
        sent = _sent.decode(text)
        body = bytes(sent.body)
        _check_names(text, body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return _wrong(number, None, "invalid_json_line", f"the line is not a JSON object: {error}.")
    custom_id = sent.custom_id
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MOST_ID:
        words = f"custom_id must be a text of 1 to {MOST_ID} characters."
        return _wrong(number, None, "invalid_custom_id", words, "custom_id")
    if sent.method != "POST":
        return _wrong(number, custom_id, "invalid_method", "method must be 'POST'.", "method")
    if sent.url not in endpoints:
        words = f"url must be {' or '.join(endpoints)}."
        return _wrong(number, custom_id, "mismatched_url", words, "url")
    if not body.startswith(b"{"):
        return _wrong(number, custom_id, "invalid_body", "body must be a JSON object.", "body")
    try:
        streamed = _body.decode(body).stream
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        streamed = False  # the endpoint says what is wrong with it
    if streamed:
        return _wrong(number, custom_id, "unsupported", "a line cannot be streamed; leave stream out.", "body.stream")
    return Line(number, custom_id, sent.url, body)


def _check_names(text: bytes, body: bytes) -> None:
    """Raises DoubledName; of names in the body its endpoint says so. A long body is not parsed once more for it."""
    beside = text.replace(body, b"{}") if body.startswith(b"{") else text
    json.loads(beside.decode(), object_pairs_hook=unique_members)


def check_lines(lines: Iterator[Line], most_lines: int) -> Verdict:
    """Blocks for as long as it takes to read them all. A line that is wrong by itself does not keep the others from
    running, unless all are; without a custom_id of its own it could not be told apart."""
    verdict, wrong, seen = Verdict(), list[BatchError](), dict[bytes, int]()
    fine = 0
    for line in lines:
        verdict.total += 1
        if verdict.total > most_lines:
            words = f"The file has more than {most_lines:,} lines, the limit. Make several files of it."
            return Verdict(verdict.total, [BatchError("too_many_lines", words)])
        if verdict.total % REST_LINES == 0:
            time.sleep(REST_SECONDS)
        error = line.problem
        if line.custom_id is not None:
            key = hashlib.blake2b(line.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            first = seen.setdefault(key, line.number)
            if first != line.number:
                words = f"Line {line.number}: custom_id {line.custom_id[:80]!a} is that of line {first} too."
                error = BatchError("duplicate_custom_id", words, "custom_id", line.number)
        if error is None:
            fine += 1
        else:
            _note(error, verdict.errors if error.param == "custom_id" else wrong)
    if verdict.total == 0:
        verdict.errors.append(BatchError("empty_file", "The file has no lines. Send one JSON object on each line."))
    elif not fine and not verdict.errors:
        verdict.errors = wrong
    return verdict


def _note(error: BatchError, errors: list[BatchError]) -> None:
    if len(errors) < MOST_ERRORS:
        errors.append(error)


def _wrong(number: int, custom_id: str | None, code: str, words: str, param: str | None = None) -> Line:
    return Line(number, custom_id, problem=BatchError(code, f"Line {number}: {words}", param, number))


def _skip_rest(file: Any, most: int) -> None:
    """Of a line that is too long."""
    while (text := file.readline(most)) and not text.endswith(b"\n"):
        pass


def blocks_of(lines: Iterator[Line], most_lines: int = 64, most_bytes: int = 1 << 20) -> Iterator[Sequence[Line]]:
    """A few lines at a time, so that not each of them is a turn of the thread that reads."""
    block, size = list[Line](), 0
    for line in lines:
        block.append(line)
        size += len(line.body)
        if len(block) >= most_lines or size >= most_bytes:
            yield block
            block, size = [], 0
    if block:
        yield block
