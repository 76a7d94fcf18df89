"""The edit loop: tests of what changed since main, for at most 90 seconds. `make test-fast` runs it.

A changed module is tested by its namesake first, then by the tests that import it, most specific first. What does not
fit into the time is named at the end: `make test` runs it.
"""

import ast
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
BUDGET: Final = 75.0
"""Seconds until no further file is begun: those that run may end."""
MOST_FILES: Final = 40
PAGES: Final = ("tests/test_docs.py", "tests/test_architecture.py", "tests/test_glossary.py", "tests/test_pictures.py")
OF_OTHERS: Final = {
    "docs/": PAGES,
    "README.md": PAGES,
    "CONTRIBUTING.md": PAGES,
    "platform/web/templates/": ("tests/web/test_pages.py",),
    "platform/web/static/": ("tests/web/test_pages.py", "tests/browser/test_comfort.py"),
    "migrations/": ("tests/registry/database/test_migrate.py",),
    "": ("tests/test_layout.py", "tests/test_lints.py"),
}
"""What begins with a key is tested by these; what is no Python has no imports to go by."""
ELSEWHERE: Final = "tests/clients/"
"""Tests that run in another environment: make clients."""


class Budget:
    """Ends the run when its time is up."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._session: pytest.Session | None = None
        self.is_over = False

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    def pytest_runtest_logreport(self) -> None:
        if self._session is not None and time.monotonic() > self._ends:
            self.is_over = True
            self._session.shouldstop = "the time is up"


def changed_files() -> list[str]:
    """Beside main, committed or not."""
    base = _git("merge-base", "HEAD", "main") or ["HEAD"]
    return [*_git("diff", "--name-only", "--diff-filter=d", base[0]), *_git("ls-files", "-o", "--exclude-standard")]


def files_for(changed: Iterable[str]) -> list[str]:
    """Test files, most telling first."""
    found: dict[str, None] = {}
    files, imports = [*changed], {path: set(_imports(path)) for path in (ROOT / "tests").rglob("test_*.py")}
    for file in files:
        if file.startswith("tests/") and Path(file).name.startswith("test_"):
            found[file] = None
    for file in files:
        module = _module(file)
        users = [path for path, names in imports.items() if module in names]
        namesake = f"test_{Path(file).stem}.py"
        users.sort(key=lambda path: (path.name != namesake, len(imports[path])))
        found |= dict.fromkeys(str(path.relative_to(ROOT)) for path in users)
    for start, tests in OF_OTHERS.items():
        if any(file.startswith(start) for file in files):
            found |= dict.fromkeys(tests)
    return [file for file in found if not file.startswith(ELSEWHERE)]


def _module(file: str) -> str:
    """As tests import it; empty for what is no module."""
    if not file.endswith(".py"):
        return ""
    parts = [part for part in Path(file).with_suffix("").parts if part != "__init__"]
    return ".".join(["loraplex", *parts[1:]] if parts[0] == "platform" else parts)


def _imports(path: Path) -> Iterator[str]:
    """All that it may mean: of `from a import b` both a and a.b."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{name.name}" for name in node.names)


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.split()


def main() -> int:
    tests = files_for(changed_files())
    if not tests:
        print("Nothing has changed beside main.")
        return 0
    chosen, rest, budget = tests[:MOST_FILES], tests[MOST_FILES:], Budget(BUDGET)
    code = pytest.main(["-q", "-x", "-n", "2", "--dist", "loadfile", *sys.argv[1:], *chosen], plugins=[budget])
    if budget.is_over or rest:
        print(f"The time was up before all {len(tests)} files had run. Run make test for the others.")
    return 0 if budget.is_over and code == pytest.ExitCode.INTERRUPTED else int(code)


if __name__ == "__main__":
    sys.exit(main())
