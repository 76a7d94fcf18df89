"""Pairs of texts that are scored: one with each of several, or as many with as many."""

from collections.abc import Sequence


def paired(first: str | Sequence[str], second: str | Sequence[str]) -> tuple[list[str], list[str]]:
    """Two lists of the same length. ValueError for numbers of texts that make no pairs."""
    firsts, seconds = _listed(first), _listed(second)
    if not firsts or not seconds:
        raise ValueError("there is no text to score; give at least one on each side")
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    if len(firsts) != len(seconds):
        raise ValueError(
            f"{len(firsts)} texts cannot be paired with {len(seconds)}: give one on the first side, or as many on both"
        )
    return firsts, seconds


def check_classes(count: int) -> None:
    """ValueError for a head that has another number of classes than a score."""
    if count != 1:
        raise ValueError(f"the classification head has {count} classes, and a score is made of one; use classify")


def _listed(texts: str | Sequence[str]) -> list[str]:
    listed = [texts] if isinstance(texts, str) else list(texts)
    wrong = next((text for text in listed if not isinstance(text, str)), None)
    if wrong is not None:
        raise ValueError(f"only texts can be scored, got {type(wrong).__name__}")
    return listed
