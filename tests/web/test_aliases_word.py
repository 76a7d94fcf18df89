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
    assert code == 0 and "sql@prod points at version 1; version 1 90 %, version 2 10 %" in out
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
    assert json.loads(two("aliases", "remove", "sql@prod", "--json")[1])["removed"] == "sql@prod"
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
        (("shadow", "sql@prod"), "or use --off"),
        (("guard", "sql@prod"), "at least one limit"),
        (("guard", "sql@prod", "--max-error-rate", "2"), "The guard is invalid"),
        (("remove", "sql@prod"), "no alias 'prod'"),
        (("list", "none"), "none"),
    ],
)
def test_what_cannot_be_is_refused_in_words(two: Run, words: tuple[str, ...], reason: str) -> None:
    code, _, err = two("aliases", *words)
    assert code == 2 and reason in err and "Traceback" not in err


def test_words_say_whom_they_move(run: Run, adapter_folders: list[Path]) -> None:
    first = run("adapters", "add", "sql", adapter_folders[0])[1]
    assert "Requests for sql get version 1 from now on." in first
    words = ("adapters", "add", "sql", adapter_folders[1], "--activate")
    shared = json.loads(run(*words, "share", "--percent", "20", "--json")[1])
    assert (shared["share"], shared["moves"][0]["to"]) == (20, {"1": 80, "2": 20})
    assert "Requests for sql get version 2 from now on." in run(*words, "live")[1]
    assert "--activate takes inactive, share, live" in run(*words, "now")[2]
    told = run("aliases", "set", "sql", "1", "--candidate", "2=10", "--share-by", "caller")[1]
    assert "version 1 90 %, version 2 10 % of callers" in told
    assert "Requests for sql go from version 2 to" in told and "Share by request instead." in told
    assert "caller or request" in run("aliases", "set", "sql", "1", "--candidate", "2=10", "--share-by", "user")[2]
    removed = " ".join(run("aliases", "remove", "sql")[1].split())
    assert removed.endswith("to version 2. Version 1 had no requests in the last day.")
