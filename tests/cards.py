"""Cards that kernels are compiled for, or are told to run on, without any of them."""

from dataclasses import replace

import pytest

from loraplex.quant.kernels.cuda import card
from loraplex.quant.kernels.cuda.card import Card

CARDS = {
    80: Card("NVIDIA A100", (8, 0), 163 << 10, 108),
    86: Card("NVIDIA A10", (8, 6), 99 << 10, 72),
    89: Card("NVIDIA L4", (8, 9), 99 << 10, 58),
    90: Card("NVIDIA H100", (9, 0), 227 << 10, 132),
    100: Card("NVIDIA B200", (10, 0), 227 << 10, 148),
    120: Card("NVIDIA GeForce RTX 5090", (12, 0), 99 << 10, 170),
}
"""By architecture."""
ROOMY = (80, 90, 100)
"""With shared memory for three programs of most kernels, each with four steps on their way."""


def use_card(monkeypatch: pytest.MonkeyPatch, known: Card) -> None:
    """Launches are those for this card, on a CPU too."""
    monkeypatch.setattr(card, "INTERPRETER", known)
    monkeypatch.setattr(card, "_read_card", lambda device: known)


def use_processors(monkeypatch: pytest.MonkeyPatch, processors: int) -> None:
    use_card(monkeypatch, replace(card.INTERPRETER, processors=processors))
