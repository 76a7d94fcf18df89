"""docs/architecture.md, its map and CONTRIBUTING.md name what is there; so do the docstrings of rooms."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLATFORM = ROOT / "platform"
PAGE, CONTRIBUTING = ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"
MAPS = sorted((ROOT / "docs" / "images").glob("map-*.svg"))
PACKAGES = sorted(file.parent for file in PLATFORM.glob("*/__init__.py"))
ROOMS = sorted(file.parent for package in PACKAGES for file in package.rglob("__init__.py"))
TOP = (*(package.name for package in PACKAGES), "tests", "docs", "deploy", "benchmarks", "examples", "migrations")
NAMED = re.compile(rf"`((?:{'|'.join(TOP)})/[\w./-]*)")
"""A path between backticks, of a package or of the repository; a `: Symbol` may follow."""
WORD = re.compile(r"[A-Za-z_]\w*")


def parents_of(path: str) -> tuple[Path, Path]:
    return PLATFORM / path, ROOT / path


@pytest.mark.parametrize("text", [PAGE, CONTRIBUTING], ids=lambda path: path.name)
def test_paths_in_the_texts_exist(text: Path) -> None:
    named = NAMED.findall(text.read_text())
    assert len(named) > 5
    assert not [path for path in named if not any(parent.exists() for parent in parents_of(path))]


@pytest.mark.parametrize(("text", "most"), [(PAGE, 70), (CONTRIBUTING, 120)], ids=["architecture", "contributing"])
def test_the_texts_are_short(text: Path, most: int) -> None:
    assert len(text.read_text().splitlines()) <= most


def test_the_page_shows_the_map_of_the_readers_theme() -> None:
    assert [map.name for map in MAPS] == ["map-dark.svg", "map-light.svg"]
    assert re.findall(r'(?:src|srcset)="images/(map-\w+\.svg)"', PAGE.read_text()) == [map.name for map in MAPS]


@pytest.mark.parametrize("map", MAPS, ids=lambda path: path.stem)
def test_the_map_shows_every_room_and_is_small(map: Path) -> None:
    text = map.read_text()
    words = set(WORD.findall(" ".join(re.findall(r">([^<>]+)</text>", text))))
    rooms = {room.name for package in PACKAGES for room in package.iterdir() if (room / "__init__.py").exists()}
    assert rooms | {package.name for package in PACKAGES} <= words
    assert len(text) <= 8 << 10


def names_below(folder: Path) -> Iterator[str]:
    """All that modules below `folder` define, and their own names."""
    for file in folder.rglob("*.py"):
        yield from (file.stem, file.parent.name)
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield name
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                    yield name


def test_seams_that_rooms_name_exist() -> None:
    known = {*names_below(PLATFORM), "py", "loraplex", "model"}
    for room in ROOMS:
        docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
        named = {word for quoted in re.findall(r"`([^`]+)`", docstring) for word in WORD.findall(quoted)}
        assert named <= known, f"{room.name} names {named - known}"
