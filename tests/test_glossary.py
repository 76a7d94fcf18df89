"""docs/glossary.md names what is in the code, and its words are those used there."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLATFORM = ROOT / "platform"
ROW = re.compile(r"^\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| `(?P<file>[^`:]+): (?P<symbol>\w+)` \|$", re.MULTILINE)
ROWS = [found.groupdict() for found in ROW.finditer((ROOT / "docs" / "glossary.md").read_text())]
PRIVATE_WORDS = {
    *("Roster", "Wording", "Wordings", "Followers", "Outbox", "Carrier", "FairTurns"),
    *("roster", "wording", "followers", "outbox", "carrier", "telling_tokens", "effect_proof"),
}
PRIVATE_FILES = {"roster", "wording", "followers", "outbox", "kept", "turns", "turn", "guessing", "effect_proof"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def defined_in(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name


def names_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name


def test_the_glossary_has_thirty_terms_in_order() -> None:
    terms = [row["term"].casefold() for row in ROWS]
    lines = [line for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if line.startswith("|")]
    assert len(lines) == len(terms) + 2, "every row has a term, a meaning, and `file: symbol`"
    assert len(terms) >= 30
    assert terms == sorted(set(terms))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["term"])
def test_a_term_lives_where_the_glossary_says(row: dict[str, str]) -> None:
    file = PLATFORM / row["file"]
    assert file.is_file()
    assert row["symbol"] in defined_in(tree_of(file))


def test_no_private_word_is_a_name() -> None:
    for file in PLATFORM.rglob("*.py"):
        assert file.stem not in PRIVATE_FILES, file
        found = PRIVATE_WORDS & {name.lstrip("_") for name in names_in(tree_of(file))}
        assert not found, f"{file} has {found}: docs/glossary.md has the field's words"
