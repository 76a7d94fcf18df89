"""Adapter weights from disk to rank pages: read once, verified against the digest, converted, laid out.

Pages are numpy arrays of bit patterns, unsigned integers as wide as the arena's dtype: rank pages
`[L, RANKS_PER_PAGE * (in + out)]`, vector pages `[L, 2 * out]` float32. Only numpy runs here: torch operations on a
loader thread would start a second team of OpenMP threads.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .digest import canonical_tensors, digest_opening
from .inspection import read_structure
from .manifest import BaseSignature, Content, ModuleLora, Role, TensorInfo
from .report import Report
from .values import Bits, read_bits, to_floats

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"


class PageKind(NamedTuple):
    kind: str
    vectors: bool
    """A page of gains and shifts over the outputs, not of ranks."""


Pages = Mapping[PageKind, Sequence[Bits]]


def read_content(folder: Path, base: BaseSignature) -> Content:
    """What an adapter that the registry has checked consists of. ValueError says why it cannot be served after all."""
    report = Report()
    with FileIO(folder / WEIGHTS_FILE) as file:
        structure = read_structure((folder / CONFIG_FILE).read_bytes(), file, base, report)
    if report.failed:
        raise ValueError("; ".join(finding.message for finding in report.findings if finding.level == "fail"))
    return structure.content


def load_pages(folder: Path, content: Content, digest: str, dtype: str, ranks_per_page: int, pages: Pages) -> None:
    """Fill `pages`, whose dtype is F32, F16 or BF16. Ranks that no module has become zero.

    ValueError when the bytes on disk are not those of `digest`: then `pages` must not be used.
    """
    clear_pages(pages)
    homes = _homes(content.modules, ranks_per_page, dtype, pages)
    seen = hashlib.sha256(digest_opening(content.invocation_tokens))
    with FileIO(folder / WEIGHTS_FILE) as file:
        for facts, tensor in canonical_tensors(content.modules):
            bits = read_bits(file, tensor)
            seen.update(facts)
            seen.update(bits.data)
            homes[tensor].put(bits)
    if seen.hexdigest() != digest:
        raise ValueError(f"{WEIGHTS_FILE} has changed on disk: its digest is now {seen.hexdigest()[:12]}...")


def clear_pages(pages: Pages) -> None:
    """No ranks, gains of 1 and shifts of 0."""
    for kind, found in pages.items():
        for page in found:
            page.fill(0)
            if kind.vectors:
                _vectors(page)[:, 0] = 1


def convert(bits: Bits, source: str, target: str) -> Bits:
    """Bit patterns of the dtype `source` as those of `target`, rounded to nearest even."""
    return bits if source == target else _FROM_FLOAT[target](to_floats(bits, source))


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
        values = convert(bits, self.source, self.target)
        by_rank = values.T if self.by_column else values
        start = 0
        for share in self.shares:
            rows = by_rank[start : start + len(share)]
            share[: len(rows)] = rows
            start += len(share)


@dataclass(frozen=True, slots=True)
class _Vector:
    """Where a vector goes: what the base decides of it, `finish` adds later."""

    role: Role
    source: str
    scaling: float
    gain: NDArray[np.float32]
    shift: NDArray[np.float32]

    def put(self, bits: Bits) -> None:
        values = to_floats(bits, self.source).reshape(-1)
        if self.role in ("magnitude", "gain"):
            self.gain[:] *= values
        else:
            self.shift[:] += values * np.float32(self.scaling if self.role == "lora_bias" else 1.0)


def _homes(modules: Sequence[ModuleLora], ranks_per_page: int, dtype: str, pages: Pages) -> dict[TensorInfo, _Home]:
    homes: dict[TensorInfo, _Home] = {}
    for module in modules:
        if module.a is not None and module.b is not None:
            rows = [page[module.layer] for page in pages[PageKind(module.kind, vectors=False)]]
            split = ranks_per_page * module.a.shape[1]
            a, b = ([part.reshape(ranks_per_page, -1) for part in parts] for parts in _split(rows, split))
            homes[module.a] = _Ranks(a, by_column=False, source=module.a.dtype, target=dtype)
            homes[module.b] = _Ranks(b, by_column=True, source=module.b.dtype, target=dtype)
        for vector in module.vectors:
            gain, shift = _vectors(pages[PageKind(module.kind, vectors=True)][0])[module.layer]
            homes[vector.tensor] = _Vector(vector.role, vector.tensor.dtype, module.scaling, gain, shift)
    return homes


def _split(rows: Sequence[Bits], at: int) -> tuple[list[Bits], list[Bits]]:
    return [row[:at] for row in rows], [row[at:] for row in rows]


def _vectors(page: Bits) -> NDArray[np.float32]:
    """[L, 2, out]: gains and shifts."""
    return page.view(np.float32).reshape(len(page), 2, -1)


def _float_to_bfloat16(values: NDArray[np.float32]) -> Bits:
    bits = values.view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)


_FROM_FLOAT: Final[dict[str, Callable[[NDArray[np.float32]], Bits]]] = {
    "F32": lambda values: values.view(np.uint32),
    "F16": lambda values: values.astype(np.float16).view(np.uint16),
    "BF16": _float_to_bfloat16,
}
