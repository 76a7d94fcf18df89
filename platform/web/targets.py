"""targets: which modules an adapter changes, for people. A base of many experts has thousands of them."""

import re
from collections.abc import Collection, Iterable
from typing import Final

from .units import count_words

_OF_EXPERT: Final = re.compile(r"(?:.*\.)?(\w+)\.(\d+)\.(\w+)")
MOST_RUNS: Final = 4
"""Of experts with numbers in a row that are named; more are counted."""


def grouped(modules: Iterable[str]) -> list[str]:
    """The modules, those of experts as one: experts 0–127 (down_proj, up_proj)."""
    others, experts = list[str](), dict[tuple[str, str], set[int]]()
    for module in modules:
        match = _OF_EXPERT.fullmatch(module)
        if match is None:
            others.append(module)
        else:
            experts.setdefault((match[1], match[3]), set()).add(int(match[2]))
    alike = dict[tuple[str, frozenset[int]], list[str]]()
    for (name, linear), numbers in experts.items():
        alike.setdefault((name, frozenset(numbers)), []).append(linear)
    return others + [
        f"{name} {_numbers(numbers)} ({', '.join(sorted(linears))})" for (name, numbers), linears in alike.items()
    ]


def _numbers(numbers: Collection[int]) -> str:
    """1, 3–7"""
    runs = list[tuple[int, int]]()
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    if len(runs) > MOST_RUNS:
        return f"{min(numbers)}–{max(numbers)}, {count_words(len(numbers), 'expert')} of them"
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)
