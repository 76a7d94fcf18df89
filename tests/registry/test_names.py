import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loraplex.registry.errors import InvalidName
from loraplex.registry.names import Reference, check_adapter_name, check_alias, nearest_names, parse_reference

from .helpers import HOSTILE_STRINGS

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True)


@given(NAMES, st.integers(0, 999_999_999))
def test_a_version_reference_parses_to_its_parts(name: str, number: int) -> None:
    assert parse_reference(f"{name}@{number}") == Reference(name, number)
    assert str(parse_reference(f"{name}@{number}")) == f"{name}@{number}"


@given(NAMES, NAMES.filter(lambda alias: not alias.isdigit()))
def test_an_alias_reference_parses_to_its_parts(name: str, alias: str) -> None:
    assert parse_reference(f"{name}@{alias}") == Reference(name, alias)


@given(st.text())
def test_what_parses_is_safe_to_show_and_to_store(text: str) -> None:
    try:
        reference = parse_reference(text)
    except InvalidName as error:
        assert str(error).isascii()
    else:
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", reference.name)


@pytest.mark.parametrize("text", [text for text in HOSTILE_STRINGS if ":" not in text])
def test_hostile_names_are_refused_in_words(text: str) -> None:
    with pytest.raises(InvalidName, match=r"use 1 to 63 characters|There is no version"):
        parse_reference(text)


def test_upper_case_is_refused_with_the_name_that_would_do() -> None:
    with pytest.raises(InvalidName, match=r"for example 'sql-bot'"):
        check_adapter_name("SQL-Bot")


@pytest.mark.parametrize(("alias", "reason"), [("3", "version number"), ("latest", "newest"), ("Prod", "'prod'")])
def test_aliases_that_mean_something_else_are_refused(alias: str, reason: str) -> None:
    with pytest.raises(InvalidName, match=reason):
        check_alias(alias)


def test_nearest_names_come_best_first() -> None:
    assert nearest_names("SQL-bto", ["json", "sql-bot", "sql", "sql-bot2"])[0] == "sql-bot"
    assert nearest_names("zzz", ["json", "sql"]) == []
    assert nearest_names("s", ["sql", "s1", "x"]) == ["s1", "sql"]


def test_the_nearest_of_thousands_is_found() -> None:
    names = [f"customer-{number}-support" for number in range(5000)]
    assert nearest_names("custmer-1234-suport", names)[0] == "customer-1234-support"
    assert len(nearest_names("a" * 100_000, [*names, "aaaa" * 15])) == 1


@pytest.mark.parametrize("selector", ["01", "00", "-1", "1" * 64, ""])
def test_a_version_has_one_spelling(selector: str) -> None:
    with pytest.raises(InvalidName, match="There is no version"):
        parse_reference(f"sql@{selector}")
