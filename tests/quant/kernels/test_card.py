"""What tiles and the number of programs follow from."""

from types import SimpleNamespace

import pytest
import torch

from loraplex.quant.kernels.cuda import card
from loraplex.quant.kernels.cuda.card import INTERPRETER, Card, find_card, limit_registers
from tests.cards import CARDS


def test_a_card_is_what_torch_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(
        name="NVIDIA L40S", major=8, minor=9, multi_processor_count=142, shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=99 << 10,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    card._read_card.cache_clear()
    assert find_card(torch.device("cuda", 0)) == Card("NVIDIA L40S", (8, 9), 99 << 10, 142)
    card._read_card.cache_clear()
    assert find_card(torch.device("cpu")) is INTERPRETER


def test_families_differ_by_what_they_can_do_not_by_their_age() -> None:
    assert [number for number, known in CARDS.items() if known.can_chain] == [90, 100, 120]
    assert [number for number, known in CARDS.items() if known.multiplies_shared] == [90, 100]
    assert [number for number, known in CARDS.items() if known.has_float8] == [89, 90, 100, 120]


@pytest.mark.parametrize(("kilobytes", "programs"), [(99, 1), (49, 2), (48.5, 2), (50, 1), (24, 4), (99.1, 0)])
def test_programs_of_99_kilobytes(kilobytes: float, programs: int) -> None:
    """A multiprocessor has 100 KB, of which each program takes one for itself."""
    assert CARDS[86].resident(int(kilobytes * 1024)) == programs


@pytest.mark.parametrize(
    ("programs", "warps", "most"), [(4, 4, 128), (3, 4, 168), (2, 4, 248), (1, 8, 248), (2, 8, 128)]
)
def test_registers_for_so_many_programs(programs: int, warps: int, most: int) -> None:
    assert limit_registers(programs, warps) == most
