"""Adapter weights from disk to rank pages: read once, verified against the digest, converted, laid out.

Pages are numpy arrays of bit patterns, unsigned integers as wide as the arena's dtype: of a kind with L modules, rank
pages `[L, RANKS_PER_PAGE * (in + out)]` and vector pages `[L, 2 * out]` float32; pages of token rows as in
row_pages.py, whose index is written where it is known where they lie. Only numpy and serial kernels run here: torch
operations on a loader thread would start a second team of OpenMP threads.
"""

import hashlib
import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from io import FileIO
from itertools import cycle
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from ..apply.batch import RANKS_PER_PAGE, TOKENS_PER_PAGE
from ..files.digest import canonical_tensors, digest_opening
from ..files.manifest import BaseSignature, ModuleLora, Role, TensorInfo
from ..files.report import Report
from ..files.token_rows import StoredRows, find_changed_tokens
from ..files.values import Bits, convert, read_bits, to_floats
from ..inspection.inspection import CONFIG_FILE, WEIGHTS_FILE, read_structure
from .job_thread import JobThread
from .row_pages import rows_of, write_tokens

try:
    from ..kernels.layout import to_bfloat16, transpose, transpose_to_bfloat16
except ModuleNotFoundError:  # numba, which a machine with a GPU need not have: the same bits, more slowly
    from .plain_layout import to_bfloat16, transpose, transpose_to_bfloat16

HASHED_TOGETHER: Final = 1 << 20
"""Bytes of tensors that are hashed at once: threads that hand the interpreter lock to and fro do not run beside each
other."""
MOST_BEHIND: Final = 4
"""Of these hand-overs in memory that are not yet hashed."""
READ_AHEAD: Final = 128 << 10
"""Bytes that Linux is told of at once: of a longer range it reads no more ahead than a device takes in one request."""
ALIGNMENT: Final = 64

Part = Literal["ranks", "vectors", "rows", "index"]


class PageKind(NamedTuple):
    kind: str
    part: Part
    """Ranks of A and B; gains and shifts over the outputs; rows of tokens; where these are."""


Pages = Mapping[PageKind, Sequence[Bits]]


class ChangedFile(ValueError):
    """What is on the disk is not the adapter that was judged."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What an adapter brings: all that decides how much room it needs."""

    modules: tuple[ModuleLora, ...]
    tokens: Mapping[str, NDArray[np.int64]]
    """Embedding or head -> tokens with rows other than the base's, ascending."""
    vocab_size: int
    """Tokens that the adapted model knows."""
    invocation_tokens: tuple[int, ...]
    """It acts on a prompt from the last occurrence of these on; none: on all of it."""
    head: tuple[ModuleLora, ...] = ()
    """Linears of a classification head, if any, and their values by name: they stand instead of the base's."""
    score: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    pages: Mapping[PageKind, int] = field(default_factory=dict)
    """How many it takes of each."""
    ranks: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    """[kinds, modules of a kind], and the scaling at each rank: rows of the page table for one slot."""
    scalings: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    with_vectors: tuple[ModuleLora, ...] = ()
    """Those of the modules that have any."""


def read_contents(folder: Path, base: BaseSignature, dtype: str, stored: StoredRows | None) -> Contents:
    """What an adapter the registry has checked brings to a base served in `dtype`. `stored` must be given for adapters
    with rows of tokens. ValueError says why it cannot be served after all."""
    report = Report()
    with FileIO(folder / WEIGHTS_FILE) as file:
        _read_ahead(file)
        structure = read_structure((folder / CONFIG_FILE).read_bytes(), file, base, report)
        if report.failed:
            raise ValueError("; ".join(finding.message for finding in report.findings if finding.level == "fail"))
        tokens = find_changed_tokens(file, structure.modules, dtype, stored)
        score = _read_head(file, structure.head)
    if structure.invocation_tokens and any(map(len, tokens.values())):
        raise ValueError("rows of tokens of its own beside alora_invocation_tokens would act before those too")
    modules = structure.modules
    return Contents(
        modules=modules,
        tokens=tokens,
        vocab_size=structure.vocab_size or base.vocab_size,
        invocation_tokens=structure.invocation_tokens,
        head=structure.head,
        score=score,
        pages=_count_pages(modules, tokens),
        **_table_rows(modules, base),
        with_vectors=tuple([module for module in modules if module.vectors]),
    )


def _count_pages(modules: Sequence[ModuleLora], tokens: Mapping[str, NDArray[np.int64]]) -> dict[PageKind, int]:
    """Ranks as the largest of a kind has, vectors in one page, its own rows."""
    ranks: dict[str, int] = {}
    for module in modules:
        ranks[module.kind] = max(module.rank, ranks.get(module.kind, 0))
    pages = {PageKind(kind, "ranks"): -(-rank // RANKS_PER_PAGE) for kind, rank in ranks.items() if rank}
    pages |= {PageKind(module.kind, "vectors"): 1 for module in modules if module.vectors}
    for kind, found in tokens.items():
        if len(found):
            pages |= {PageKind(kind, "rows"): -(-len(found) // TOKENS_PER_PAGE), PageKind(kind, "index"): 1}
    return pages


class TableRows(TypedDict):
    """As in Contents."""

    ranks: NDArray[np.int32]
    scalings: NDArray[np.float32]


def _table_rows(modules: Sequence[ModuleLora], base: BaseSignature) -> TableRows:
    rows = {kind: row for row, kind in enumerate(base.shapes())}
    shape = len(rows), max(module.count for module in base.modules.values())
    ranks, scalings = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    for module in modules:
        place = rows[module.kind], _ordinal(module, base)
        ranks[place], scalings[place] = module.rank, module.scaling
    return TableRows(ranks=ranks, scalings=scalings)


def _read_head(file: FileIO, head: Sequence[ModuleLora]) -> dict[str, NDArray[np.float32]]:
    named = {f"{linear.kind}.weight": rows.tensor for linear in head for rows in linear.rows}
    named |= {f"{linear.kind}.{vector.role}": vector.tensor for linear in head for vector in linear.vectors}
    return {name: np.array(to_floats(read_bits(file, tensor), tensor.dtype)) for name, tensor in named.items()}


def _read_ahead(file: FileIO) -> None:
    """Let the system bring the whole file while its header is judged."""
    if hasattr(os, "posix_fadvise"):
        for start in range(0, os.fstat(file.fileno()).st_size, READ_AHEAD):
            os.posix_fadvise(file.fileno(), start, READ_AHEAD, os.POSIX_FADV_WILLNEED)


class Staging:
    """Memory for tensors between file and pages, written anew for each: new memory takes longer to find than a file to
    read. And the thread that hashes them. For one load at a time."""

    def __init__(self) -> None:
        self.blocks = tuple(np.empty(HASHED_TOGETHER, np.uint8) for _ in range(MOST_BEHIND + 1))
        self.hasher = JobThread("adapter-hash")


class _Reader:
    """Reads tensors one after another, and hashes them on a thread: that is the longest part of a load, and runs beside
    the others, a few blocks behind."""

    def __init__(self, file: FileIO, digest: "hashlib._Hash", staging: Staging) -> None:
        self._file = file
        self._digest = digest
        self._hasher = staging.hasher
        self._blocks = cycle(staging.blocks)
        self._block, self._used = next(self._blocks), 0
        self._parts: list[tuple[bytes, Bits]] = []
        self._behind: deque[Future[None]] = deque()

    def read(self, facts: bytes, tensor: TensorInfo) -> Bits:
        """Its values, until the next call."""
        size = tensor.end - tensor.start
        if self._used + size > HASHED_TOGETHER:
            self._hand_over()
        if size > HASHED_TOGETHER:
            bits = read_bits(self._file, tensor)
        else:
            bits = read_bits(self._file, tensor, self._block[self._used : self._used + size])
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        self._parts.append((facts, bits))
        return bits

    def finish(self) -> None:
        """Until all is hashed."""
        self._hand_over()
        for rest in self._behind:
            rest.result()

    def _hand_over(self) -> None:
        self._behind.append(self._hasher.submit(_update, self._digest, self._parts))
        if len(self._behind) > MOST_BEHIND:
            self._behind.popleft().result()
        self._block, self._used, self._parts = next(self._blocks), 0, []


def load_pages(
    folder: Path, contents: Contents, base: BaseSignature, digest: str, dtype: str, staging: Staging, pages: Pages
) -> None:
    """Fill `pages`, whose dtype is F32, F16 or BF16. Ranks that no module has become zero.

    ChangedFile when the bytes on disk are not those of `digest`: then `pages` must not be used.
    """
    _clear_what_nothing_fills(contents, base, pages)
    for kind, tokens in contents.tokens.items():
        write_tokens(pages.get(PageKind(kind, "rows"), ()), tokens)
    homes = _homes(contents, base, dtype, pages)
    seen = hashlib.sha256(digest_opening(contents.invocation_tokens))
    with FileIO(folder / WEIGHTS_FILE) as file:
        reader = _Reader(file, seen, staging)
        whole = (*contents.modules, *contents.head)
        for facts, tensor in canonical_tensors(whole):
            bits = reader.read(facts, tensor)
            for home in homes.pop(tensor, ()):
                home.put(bits)
        reader.finish()
    if seen.hexdigest() != digest:
        raise ChangedFile(f"{WEIGHTS_FILE} has changed on disk: its digest is now {seen.hexdigest()[:12]}...")


def _update(digest: "hashlib._Hash", parts: Sequence[tuple[bytes, Bits]]) -> None:
    """Small ones are joined. A large one is hashed where it lies, as a copy of a head would take a gigabyte."""
    small = list[bytes | memoryview]()
    for facts, bits in parts:
        small.append(facts)
        if bits.nbytes < HASHED_TOGETHER:
            small.append(bits.data)
        else:
            digest.update(b"".join(small))
            digest.update(bits.data)
            small = []
    digest.update(b"".join(small))


def _clear_what_nothing_fills(contents: Contents, base: BaseSignature, pages: Pages) -> None:
    """No ranks, gains of 1 and shifts of 0. Ranks of modules are left to `_Ranks`, so that they are written once."""
    filled = {(module.kind, _ordinal(module, base)) for module in contents.modules if module.rank}
    for kind, found in pages.items():
        for page in found:
            for ordinal, row in enumerate(page):
                if kind.part != "ranks" or (kind.kind, ordinal) not in filled:
                    row.fill(0)
            if kind.part == "vectors":
                _vectors(page)[:, 0] = 1


class _Home(Protocol):
    def put(self, bits: Bits) -> None:
        """Lay out a tensor where it belongs."""


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Where A or B goes."""

    shares: Sequence[Bits]
    """Its part `[ranks_per_page, width]` of each page."""
    by_column: bool
    """B comes with one column per rank, A with one row."""
    source: str
    target: str

    def put(self, bits: Bits) -> None:
        """Ranks that the shares have beyond its own become zero."""
        narrows = (self.source, self.target) == ("F32", "BF16")
        values = bits if narrows else convert(bits, self.source, self.target)
        for first, share in zip(range(0, RANKS_PER_PAGE * len(self.shares), RANKS_PER_PAGE), self.shares, strict=True):
            if self.by_column:
                ranks = values[:, first : first + RANKS_PER_PAGE]
                rows = share[: ranks.shape[1]]
                (transpose_to_bfloat16 if narrows else transpose)(ranks, rows)
            else:
                ranks = values[first : first + RANKS_PER_PAGE]
                rows = share[: len(ranks)]
                if narrows:
                    to_bfloat16(ranks.reshape(-1), rows.reshape(-1))
                else:
                    rows[:] = ranks
            share[len(rows) :] = 0


@dataclass(frozen=True, slots=True)
class _Vector:
    """Where a vector goes: what the base decides of it, `finish` adds later."""

    role: Role
    source: str
    scaling: float
    gain: NDArray[np.float32]
    shift: NDArray[np.float32]
    adds_one: bool
    """Whether a norm's weight counts from 1."""

    def put(self, bits: Bits) -> None:
        values = to_floats(bits, self.source).reshape(-1)
        if self.role == "norm" and self.adds_one:
            values = values + np.float32(1)
        if self.role in ("magnitude", "gain", "norm"):
            self.gain[:] *= values
        else:
            self.shift[:] += values * np.float32(self.scaling if self.role == "lora_bias" else 1.0)


@dataclass(frozen=True, slots=True)
class _TokenRows:
    """Where rows of tokens go: each token that has room takes its row."""

    pages: Sequence[Bits]
    """As in row_pages.py."""
    room: NDArray[np.int64]
    """The tokens that have room, ascending."""
    tokens: tuple[int, ...] | None
    source: str
    target: str

    def put(self, bits: Bits) -> None:
        tokens = np.arange(len(bits)) if self.tokens is None else np.array(self.tokens)
        sources = np.full(len(self.pages) * TOKENS_PER_PAGE, -1)
        brought = np.flatnonzero(np.isin(tokens, self.room))
        sources[self.room.searchsorted(tokens[brought])] = brought
        for page, places in zip(self.pages, sources.reshape(-1, TOKENS_PER_PAGE), strict=True):
            taken = places >= 0
            rows_of(page)[taken] = convert(bits[places[taken]], self.source, self.target)


def _homes(contents: Contents, base: BaseSignature, dtype: str, pages: Pages) -> dict[TensorInfo, list[_Home]]:
    homes: dict[TensorInfo, list[_Home]] = {}
    for module in contents.modules:
        if module.a is not None and module.b is not None:
            rows = [page[_ordinal(module, base)] for page in pages[PageKind(module.kind, "ranks")]]
            split = RANKS_PER_PAGE * module.a.shape[1]
            a, b = ([part.reshape(RANKS_PER_PAGE, -1) for part in parts] for parts in _split(rows, split))
            homes[module.a] = [_Ranks(a, by_column=False, source=module.a.dtype, target=dtype)]
            homes[module.b] = [_Ranks(b, by_column=True, source=module.b.dtype, target=dtype)]
        for vector in module.vectors:
            gain, shift = _vectors(pages[PageKind(module.kind, "vectors")][0])[_ordinal(module, base)]
            homes[vector.tensor] = [
                _Vector(
                    vector.role, vector.tensor.dtype, module.scaling, gain, shift, base.modules[module.kind].adds_one
                )
            ]
        for brought in module.rows:
            room = contents.tokens[module.kind]
            home = _TokenRows(
                pages.get(PageKind(module.kind, "rows"), ()), room, brought.tokens, brought.tensor.dtype, dtype
            )
            homes.setdefault(brought.tensor, []).append(home)
    return homes


def _ordinal(module: ModuleLora, base: BaseSignature) -> int:
    return base.modules[module.kind].ordinal(module.layer)


def _split(rows: Sequence[Bits], at: int) -> tuple[list[Bits], list[Bits]]:
    return [row[:at] for row in rows], [row[at:] for row in rows]


def _vectors(page: Bits) -> NDArray[np.float32]:
    """[L, 2, out]: gains and shifts."""
    return page.view(np.float32).reshape(len(page), 2, -1)
