"""`loraplex aliases`: routes from the command line."""

import json
from pathlib import Path

import pytest

from .test_cli import Run, run

__all__ = ["run"]


@pytest.fixture
def two(run: Run, adapter_folders: list[Path]) -> Run:
    """`sql` has two versions."""
    for folder in adapter_folders:
        assert run("adapters", "add", "sql", folder)[0] == 0
    return run


def test_a_canary_from_the_command_line(two: Run) -> None:
    lead_a_canary(two)


def lead_a_canary(two: Run) -> None:
    """From its first callers to its end."""
    code, out, _ = two("aliases", "set", "sql@prod", "1", "--candidate", "2=10")
    assert code == 0 and "sql@prod means version 1; version 1 90 %, version 2 10 %" in out
    code, out, _ = two("aliases", "guard", "sql@prod", "--max-error-rate", "0.02", "--max-first-token-ratio", "1.5")
    assert code == 0 and "guard: error_rate 0.02, first_token_ratio 1.5" in out
    code, out, _ = two("aliases", "shadow", "sql@prod", "2", "--percent", "5")
    assert code == 0 and "shadow: version 2, 5 %" in out
    (route,) = json.loads(two("aliases", "list", "sql", "--json")[1])
    assert (route["adapter"], route["alias"], route["version"]) == ("sql", "prod", 1)
    assert route["weights"] == {"1": 90, "2": 10} and route["shadow"] == {"version": 2, "percent": 5}
    assert route["guard"] == {"max_error_rate": 0.02, "max_first_token_ratio": 1.5}
    assert "sql@prod" in two("aliases", "list")[1]
    promoted = json.loads(two("aliases", "promote", "sql@prod", "--json")[1])
    assert (promoted["version"], promoted["previous"], promoted["weights"]) == (2, 1, {"2": 100})
    assert json.loads(two("aliases", "rollback", "sql@prod", "--json")[1])["version"] == 1
    assert json.loads(two("aliases", "guard", "sql@prod", "--off", "--json")[1])["guard"] is None
    assert json.loads(two("aliases", "remove", "sql@prod", "--json")[1]) == {"removed": "sql@prod"}
    assert json.loads(two("aliases", "list", "--json")[1]) == []


def test_a_name_alone_is_the_bare_name(two: Run) -> None:
    assert json.loads(two("aliases", "set", "sql", "1", "--json")[1])["alias"] == "default"
    assert "sql version 1," in two("adapters", "show", "sql")[1]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("set", "sql@prod", "1", "--candidate", "2:10"), "VERSION=PERCENT, such as 3=10"),
        (("set", "sql@prod", "1", "--candidate", "2=101"), "must be from 0 to 100"),
        (("set", "sql@3", "1"), "names a version"),
        (("promote", "sql@prod"), "no alias 'prod'"),
        (("shadow", "sql@prod"), "or say --off"),
        (("guard", "sql@prod"), "at least one limit"),
        (("guard", "sql@prod", "--max-error-rate", "2"), "The guard cannot be"),
        (("remove", "sql@prod"), "no alias 'prod'"),
        (("list", "none"), "none"),
    ],
)
def test_what_cannot_be_is_refused_in_words(two: Run, words: tuple[str, ...], reason: str) -> None:
    code, _, err = two("aliases", *words)
    assert code == 2 and reason in err and "Traceback" not in err
