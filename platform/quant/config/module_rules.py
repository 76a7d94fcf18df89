"""Rules of GPTQModel's `dynamic`: linears that are stored in another way than the others, or as floats. No torch.

The first pattern in the order of the config that matches a name from its start decides: "-:" leaves the linear as it
is, with "+:" or without a sign it has fields of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .config_fields import refused, section
from .layouts import Layout
from .module_names import PATTERN, Target, parse_targets

NEGATIVE: Final = "-:"
POSITIVE: Final = "+:"
STORED: Final = frozenset({"bits", "group_size", "sym", "desc_act"})
"""Fields that say how a weight is stored."""
CALIBRATED: Final = frozenset({"damp_percent", "damp_auto_increment", "mse", "static_groups"})
"""Fields that say how it was found, which changes nothing for a reader."""


@dataclass(frozen=True, slots=True)
class Rule:
    target: Target
    layout: Layout | None
    """None: floats."""


def parse_rules(said: Mapping[str, Any], layout_of: Callable[[Mapping[str, Any]], Layout]) -> tuple[Rule, ...]:
    """Of `dynamic` in the config `said`; `layout_of` reads the layout of a config. ValueError for fields that would
    compute something else, and as of parse_targets."""
    rules = section(said, "dynamic")
    targets = parse_targets(PATTERN + pattern.removeprefix(NEGATIVE).removeprefix(POSITIVE) for pattern in rules)
    return tuple(
        Rule(target, None if pattern.startswith(NEGATIVE) else layout_of(dict(said) | _fields(rules, pattern)))
        for pattern, target in zip(rules, targets, strict=True)
    )


def _fields(rules: Mapping[str, Any], pattern: str) -> dict[str, Any]:
    fields = section(rules, pattern)
    unknown = sorted(fields.keys() - STORED - CALIBRATED)
    if unknown:
        raise refused(f"gptq with {', '.join(unknown)} for single modules (dynamic, {pattern!r})")
    return {name: value for name, value in fields.items() if name in STORED}
