"""Findings in one text."""

import pytest

from loraplex.registry.report import Finding


@pytest.mark.parametrize(
    ("message", "remedy", "sentence"),
    [
        ("Rank 0 is no rank.", "Train with r of 1 or more.", "Rank 0 is no rank. Train with r of 1 or more."),
        ("with it, nothing is finite", "take an earlier one", "with it, nothing is finite; take an earlier one."),
        ("with it, nothing is finite", None, "with it, nothing is finite."),
    ],
)
def test_message_and_remedy_are_told_apart(message: str, remedy: str | None, sentence: str) -> None:
    assert Finding("effect", "fail", message, remedy).sentence == sentence
