"""`loraplex keys`, `usage` and `aliases` over a server's API, as they are typed on another machine."""

import json
import time
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from loraplex.web.state import State

from .test_aliases_word import lead_a_canary
from .test_push_word import port, run
from .typed import Run

__all__ = ["port", "run"]


def test_keys_from_create_to_revoke(run: Run, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run("keys", "create", "notebook", "--adapter", "sql", "--rpm", "60", "--expires", "30d", "--json")
    made = json.loads(out)
    assert (code, made["adapters"], made["limits"]["requests_per_minute"]) == (0, ["sql"], 60), err
    assert state.registry.snapshots.current.authenticate(made["token"]).name == "notebook"
    assert run("keys", "create", "plain")[1].startswith("lp-")
    code, out, _ = run("keys", "limit", made["prefix"], "--tokens-per-day", "5000")
    assert code == 0 and "5,000 tokens a day" in out and "rpm" not in out
    assert run("keys", "revoke", made["prefix"])[0] == 0
    listed = {key["name"]: key for key in json.loads(run("keys", "list", "--json")[1])}
    assert listed["notebook"]["revoked_at"] and not listed["plain"]["revoked_at"]
    monkeypatch.setattr("loraplex.web.cli.keys.console", Console(width=80))
    assert made["prefix"] in run("keys", "list")[1]
    monkeypatch.setattr("loraplex.web.cli.keys.console", Console(width=200))
    table = run("keys", "list")[1]
    assert made["prefix"] in table and "5,000 tokens a day" in table and made["token"] not in table
    by = state.registry.keys.get(made["prefix"], "default").created_by
    assert by.startswith("key:"), "the audit log names who asked"


def test_what_is_refused_is_said_in_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, reason in {
        "keys revoke 0123456789ab": "There is no API key",
        "keys list --tenant none": "none",
        "usage --by colour": "colour",
        "aliases list none": "There is no adapter 'none'",
        "aliases list --tenant acme": "leave --tenant out",
        "keys list --key lp-wrong": "Incorrect API key",
        "keys list --server http://127.0.0.1:1": "cannot be reached",
    }.items():
        code, out, err = run(*words.split())
        assert code == 2 and reason in err and not out, (words, err)
    monkeypatch.delenv("LORAPLEX_KEY")
    assert "LORAPLEX_KEY" in run("keys", "list")[2]


def test_usage_in_a_table_json_and_csv(run: Run, port: int, admin: dict[str, str]) -> None:
    assert run("usage") == (0, "Nothing was used.\n", "")
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
    assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, headers=admin).status_code == 200
    deadline = time.monotonic() + 60
    while not json.loads(run("usage", "--json")[1])["data"]:
        assert time.monotonic() < deadline
    prefix = admin["authorization"].removeprefix("Bearer lp-").partition("_")[0]
    found = json.loads(run("usage", "--key", prefix, "--by", "adapter", "--json")[1])
    assert [row["requests"] for row in found["data"]] == [1] and found["total"]["completion_tokens"] == 2
    head, *rows = run("usage", "--by", "day,adapter", "--csv")[1].splitlines()
    assert head.startswith("day,adapter_name,adapter_digest,requests,") and len(rows) == 1
    assert "requests" in run("usage")[1]
    assert run("usage", "--user", "nobody")[1] == "Nothing was used.\n"


def test_a_canary(run: Run, state: State, adapter_folders: list[Path]) -> None:
    for folder in adapter_folders:
        assert run("adapters", "push", folder, "--name", "sql")[0] == 0
    lead_a_canary(run)
    assert run("aliases", "set", "sql@live", "latest", "--candidate", "1=5")[0] == 0
    [adapter] = state.registry.snapshots.current.of_tenant("default")
    assert dict(adapter.routes["live"].weights) == {2: 95, 1: 5}
