"""What the docs point to is there: links with their anchors, files of the code, and Python names."""

import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)")
SOURCE = re.compile(r"`((?:\w+/)+\w+\.(?:py|html|js|sh|yml|json))\b")
PYTHON_NAME = re.compile(r"\bloraplex(?:\.\w+){2,}")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@cache
def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, path: str, anchor: str) -> bool:
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors_of(target))


def is_there(path: str) -> bool:
    """In the repository, or anywhere below platform/: pages leave out a room that they have named."""
    return (ROOT / path).exists() or any((ROOT / "platform").rglob(path))


def importable(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    found = LINK.findall(page.read_text())
    assert [f"{path}#{anchor}" for path, anchor in found if not leads_somewhere(page, path, anchor)] == []


@each_page
def test_every_file_of_the_code_that_a_page_names_is_there(page: Path) -> None:
    named = SOURCE.findall(page.read_text())
    assert [path for path in named if not is_there(path)] == []


@each_page
def test_every_python_name_can_be_imported(page: Path) -> None:
    assert [name for name in PYTHON_NAME.findall(page.read_text()) if not importable(name)] == []
