"""How the programs of a launch share out the chunks there are, and find and fetch an adapter's pages (triton)."""

from typing import Final

import triton
import triton.language as tl

from .matrix import pick

_LOOK: Final = tl.constexpr(128)
"""Entries of the list that a program looks at together."""


@triton.jit
def count_chunks(chunks: tl.tensor, listed: tl.tensor) -> tl.tensor:
    """Of the first `listed` entries of the list, those before its end."""
    entries = tl.arange(0, _LOOK)
    found = tl.zeros((_LOOK,), tl.int32)
    for first in tl.range(0, listed, _LOOK, num_stages=1):
        slots = tl.load(chunks + 3 * (first + entries), mask=first + entries < listed, other=-1)
        found += (slots >= 0).to(tl.int32)
    return tl.sum(found, 0)


@triton.jit
def find_module(
    chunks: tl.tensor, chunk: tl.tensor, kinds: tl.tensor, member: tl.tensor,
    KINDS: tl.constexpr, MEMBERS: tl.constexpr, SLOTS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """The slot of a chunk, and the kind of a member of the group. With SLOTS, in a list of experts, the entry is
    expert * SLOTS + slot, and kinds [E, MEMBERS] says the kinds of each expert."""
    slot = tl.load(chunks + 3 * chunk)
    if SLOTS:
        kind = tl.load(kinds + tl.maximum(slot, 0) // SLOTS * MEMBERS + member)
        slot = tl.where(slot < 0, slot, slot % SLOTS)
    else:
        kind = pick(KINDS, member)
    return slot, kind


@triton.jit
def take_share(items: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """First of this program's items and their end: as many as any other program's or one fewer, and where there are
    fewer items than programs the first programs take one each, which lie on different multiprocessors."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    each, more = items // programs, items % programs
    begin = program * each + tl.minimum(program, more)
    return begin, begin + each + (program < more).to(tl.int32)


@triton.jit
def find_pages(
    pages: tl.tensor, ranks: tl.tensor, end: tl.tensor, PAGE: tl.constexpr, ALIGNMENT: tl.constexpr
) -> tl.tensor:
    """Where the page of each rank before `end` begins; of ranks that the adapter has not, whatever the table holds."""
    return tl.multiple_of(tl.load(pages + ranks // PAGE, mask=ranks < end, other=0), ALIGNMENT)


@triton.jit
def wait_for_previous(CHAINED: tl.constexpr) -> None:
    """For all kernels launched before. As text, because gdc_wait of triton 3.9 keeps a loop around it from having loads
    on their way."""
    if CHAINED:
        tl.inline_asm_elementwise(
            "griddepcontrol.wait; // $0", "=r,~{memory}", [], dtype=tl.int32, is_pure=False, pack=1
        )
