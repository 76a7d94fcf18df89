"""Names of modules as quantization configs list them. No torch.

Patterns come with the checkpoint that the operator chose; they are bounded all the same, so that matching ends.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PATTERN: Final = "re:"
LONGEST: Final = 512
MOST_ENTRIES: Final = 16_384
MOST_REPEATS: Final = 6
REPEATS: Final = re.compile(r"[*+{]")
REPEATED_GROUP: Final = re.compile(r"\)[*+{]")
"""Of which a match can take exponential time."""
CLASSES: Final = frozenset({"Linear", "Module"})
"""Names of torch's classes that a linear is one of."""


@dataclass(frozen=True, slots=True)
class Target:
    """One entry of a list: a name, a pattern from its start ("re:"), or a class."""

    text: str
    pattern: re.Pattern[str] | None

    def names(self, *names: str) -> bool:
        """Whether it means the module that has all these names."""
        if self.pattern is None:
            return self.text in names
        return any(self.pattern.match(name) is not None for name in names)

    @property
    def is_class(self) -> bool:
        return self.text in CLASSES


def parse_targets(entries: Iterable[str]) -> tuple[Target, ...]:
    """ValueError for a pattern that is none, or too long to be decided quickly."""
    targets = tuple(Target(entry, _compiled(entry)) for entry in entries)
    if len(targets) > MOST_ENTRIES:
        raise ValueError(f"the quantization in config.json lists {len(targets)} names; at most {MOST_ENTRIES} are read")
    return targets


def _compiled(entry: str) -> re.Pattern[str] | None:
    if len(entry) > LONGEST:
        raise ValueError(f"the name {entry[:60]!r}... of the quantization in config.json is longer than {LONGEST}")
    if not entry.startswith(PATTERN):
        return None
    pattern = entry.removeprefix(PATTERN)
    if REPEATED_GROUP.search(pattern) or len(REPEATS.findall(pattern)) > MOST_REPEATS:
        raise ValueError(
            f"the pattern {entry!r} of the quantization in config.json repeats a group or has more than {MOST_REPEATS} "
            "repetitions, which can take for ever to match; write it simpler, or as names"
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{entry!r} of the quantization in config.json is no pattern: {error}") from None


class ModuleList:
    """Names that stand for a module or for all within it, whole or from any dot on: "self_attn" and "layers.1" cover
    model.layers.1.self_attn.q_proj, "layers.1" does not cover model.layers.11. Patterns as elsewhere."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._targets = parse_targets(entries)

    def covers(self, *names: str) -> bool:
        """Whether it lists the module that has all these names."""
        dotted = [f".{name}." for name in names]
        return any(
            any(f".{target.text.strip('.')}." in name for name in dotted)
            if target.pattern is None
            else target.names(*names)
            for target in self._targets
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleList) and self._targets == other._targets

    def __hash__(self) -> int:
        return hash(self._targets)
