"""`loraplex adapters list` fits a terminal: a line for each adapter."""

from typing import Any

import pytest

from loraplex.web.cli.admin_api import AdminApi
from loraplex.web.cli.output import Fields

from .typed import typed

LONG = "customer-support-of-the-northern-region-in-three-languages-x"
KINDS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapter(name: str, error: str | None = None) -> Fields:
    version: dict[str, Any] = {
        "number": 12,
        "rank": 256,
        "size": 1_234_567_890,
        "target_modules": KINDS,
        "created_at": "2026-11-27T10:00:00+00:00",
        "digest": "ab" * 32,
        "error": error,
        "enabled": True,
    }
    return {"name": name, "versions": [version], "current": 12, "latest": 12, "aliases": {}, "enabled": True}


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    found = [adapter("sql"), adapter(LONG, error="its files are gone, upload them again"), adapter("[red]x")]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(AdminApi, "ask", lambda *_: {"data": found})
    run = typed(monkeypatch, capsys)
    return lambda *options: run("adapters", "list", *options)[1].splitlines()


def test_a_line_each_at_80_columns(listed: Any) -> None:
    head, *rows = listed()
    assert head.split() == ["name", "version", "state", "rank", "size", "added"]
    assert [row.split()[0] for row in rows] == ["sql", rows[1].split()[0], "[red]x"]
    assert rows[1].split()[0].endswith("…") and LONG.startswith(rows[1].split()[0][:-1])
    assert all(len(row) <= 80 for row in rows)
    assert "broken" in rows[1] and "1.23 GB" in rows[1] and "256" in rows[1]


def test_all_of_it_if_asked(listed: Any) -> None:
    head, *rows = listed("--wide")
    assert head.split()[-2:] == ["digest", "targets"] and len(rows) == 3
    assert LONG in rows[1] and "its files are gone, upload them again" in rows[1] and ", ".join(KINDS) in rows[1]
