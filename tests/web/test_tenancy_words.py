"""`loraplex keys`, `usage`, `audit`, `tenants`, `users` as they are typed."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from loraplex.registry.registry import Registry
from loraplex.registry.usage.ledger import Account, Ledger
from loraplex.web.cli.expiry import read_expiry

from .typed import Run, typed


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    for name in [name for name in os.environ if name.startswith("LORAPLEX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LORAPLEX_DATA_DIR", str(tmp_path))
    return typed(monkeypatch, capsys)


def opened(tmp_path: Path) -> Registry:
    return Registry.open(f"sqlite:///{tmp_path / 'loraplex.db'}", tmp_path / "artifacts")


def test_keys_from_create_to_revoke(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("keys", "create", "notebook", "--adapter", "sql", "--rpm", "60", "--expires", "30d", "--json")
    made = json.loads(out)
    assert (code, made["adapters"], made["limits"]["requests_per_minute"]) == (0, ["sql"], 60)
    registry = opened(tmp_path)
    assert registry.snapshots.current.authenticate(made["token"]).name == "notebook"
    code, out, err = run("keys", "create", "plain")
    assert code == 0 and out.startswith("lp-") and "will not be shown again" in err
    listed = json.loads(run("keys", "list", "--json")[1])
    assert [key["name"] for key in listed] == ["plain", "notebook"] and "token" not in listed[0]
    assert made["token"] not in run("keys", "list")[1]
    ends = datetime.fromisoformat(made["expires_at"])
    assert timedelta(days=29) < ends - datetime.now(UTC) <= timedelta(days=30)
    code, out, _ = run("keys", "limit", made["prefix"], "--tokens-per-day", "5000")
    assert code == 0 and "5,000 tokens per day" in out and "rpm" not in out
    assert run("keys", "revoke", made["prefix"])[0] == 0
    assert json.loads(run("keys", "list", "--json")[1])[1]["revoked_at"]
    for wrong in (
        ("revoke", "0123456789ab"),
        ("create", "x", "--scope", "root"),
        ("create", "x", "--expires", "soon"),
        ("list", "--tenant", "none"),
    ):
        code, _, err = run("keys", *wrong)
        assert code == 2 and "Traceback" not in err
    registry.close()


@pytest.mark.parametrize("option", ["--limit", "--before"])
def test_a_number_that_no_database_takes_is_refused_in_words(run: Run, option: str) -> None:
    code, _, err = run("audit", "list", option, str(2**63))
    assert code == 2 and "Traceback" not in err


def test_aliases_of_a_tenant_that_is_not_there(run: Run) -> None:
    code, _, err = run("aliases", "list", "--tenant", "none")
    assert code == 2 and "There is no tenant 'none'" in err


def test_a_key_that_no_header_takes_is_refused_in_words(run: Run) -> None:
    code, _, err = run("keys", "list", "--server", "http://127.0.0.1:1", "--key", "schl\u00fcssel")
    assert code == 2 and "The key has an invalid character" in err


@pytest.mark.parametrize("name", ["[/]", "[/x]", "[red]ci"])
def test_a_name_in_brackets_is_listed_as_it_is(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's admin names keys, and the operator lists them."""
    assert run("keys", "create", name)[0] == 0
    monkeypatch.setattr("loraplex.web.cli.access.keys.console", Console(width=200))
    code, out, _ = run("keys", "list")
    assert code == 0 and name in out


NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("typed_in", "expected"),
    [
        ("12h", NOW + timedelta(hours=12)),
        ("30d", NOW + timedelta(days=30)),
        ("8w", NOW + timedelta(weeks=8)),
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T18:00+01:00", datetime(2027, 1, 31, 17, tzinfo=UTC)),
    ],
)
def test_when_a_key_ends(typed_in: str, expected: datetime) -> None:
    assert read_expiry(typed_in, NOW) == expected


@pytest.mark.parametrize(
    "typed_in",
    [
        *("", "30", "d", "-1d", "999999y", "2027-02-30", "2027-01-31T18:00", "tomorrow"),
        *("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"),
    ],
)
def test_a_time_that_is_none_is_refused_in_words(typed_in: str) -> None:
    with pytest.raises(ValueError, match="a duration such as 12h"):
        read_expiry(typed_in, NOW)


@pytest.mark.parametrize("typed_in", ["0d", "2026-11-22", "2026-11-22T11:59+00:00"])
def test_a_key_does_not_begin_expired(typed_in: str) -> None:
    with pytest.raises(ValueError, match="is in the past"):
        read_expiry(typed_in, NOW)


def test_the_list_says_when_keys_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loraplex.web.cli.access.keys.console", Console(width=200))
    run("keys", "create", "short", "--expires", "2999-01-31")
    run("keys", "create", "long")
    _, out, _ = run("keys", "list")
    assert "2999-01-31 00:00 UTC" in out and "never" in out


def test_usage_in_a_table_json_and_csv(run: Run, tmp_path: Path) -> None:
    assert run("usage") == (0, "No usage.\n", "")
    registry = opened(tmp_path)
    ledger = Ledger(registry.database, tmp_path / "usage")
    for name in ("sql", "sql", "demo"):
        entry = ledger.open(Account("default", "key:0123456789ab", "d" * 64, name), 100)
        ledger.settle(entry, prompt_tokens=1000, cached_tokens=0, completion_tokens=5, error=False)
    ledger.close()
    registry.close()
    assert "1,000" in run("usage")[1]
    found = json.loads(run("usage", "--adapter", "sql", "--by", "adapter", "--json")[1])
    assert [row["requests"] for row in found["data"]] == [2] and found["total"]["prompt_tokens"] == 2000
    head, *rows = run("usage", "--by", "day,adapter", "--csv")[1].splitlines()
    assert head.startswith("tenant,from,to,day,adapter_name,adapter_version,adapter_digest,requests,")
    assert len(rows) == 2
    code, _, err = run("usage", "--from", "yesterday")
    assert code == 2 and "must be a day such as" in err


def test_the_audit_log_is_verified(run: Run, tmp_path: Path) -> None:
    run("tenants", "create", "acme")
    code, out, _ = run("audit", "verify", "--json")
    kept = json.loads(out)["head"]
    assert (code, json.loads(out)["rows"]) == (0, 1)
    run("tenants", "disable", "acme")
    assert run("audit", "verify", "--head", kept)[0] == 0
    _audit_is_searched_and_taken_along(run)
    code, out, _ = run("audit", "verify", "--head", "f" * 64)
    assert code == 1 and "not in this chain" in out
    registry = opened(tmp_path)
    with registry.database.write() as session:
        session.connection().exec_driver_sql("UPDATE audit SET action = 'nothing' WHERE id = 2")
    registry.close()
    code, out, _ = run("audit", "verify")
    assert code == 1 and "Row 2" in out
    assert "Altered rows: 2." in run("audit", "list")[1]


def _audit_is_searched_and_taken_along(run: Run) -> None:
    """Two rows, of the tenant acme."""
    for asked, found in {
        "": ["tenant.disable", "tenant.create"],
        "--action CREATE": ["tenant.create"],
        "--actor cli --subject acm --tenant acme": ["tenant.disable", "tenant.create"],
        "--before 2": ["tenant.create"],
        "--limit 1": ["tenant.disable"],
        "--from 2026-01-01 --to 2999-01-01": ["tenant.disable", "tenant.create"],
        "--from 2999-01-01": [],
        "--tenant default": [],
    }.items():
        code, out, err = run("audit", "list", *asked.split(), "--json")
        assert code == 0 and [row["action"] for row in json.loads(out)] == found, (asked, err)
    head, *rows = run("audit", "export", "--action", "tenant")[1].splitlines()
    assert head.startswith("id,at,tenant,actor,actor_name,action,") and len(rows) == 2
    [row] = run("audit", "export", "--format", "jsonl", "--action", "create")[1].splitlines()
    assert json.loads(row)["subject"] == "tenant:acme" and json.loads(row)["intact"] is True
    assert run("audit", "list", "--actor", "nobody")[1] == "No matching rows in the audit log.\n"
    for wrong, words in {
        "list --from yesterday": "must be a day such as",
        "export --format xml": "must be csv or jsonl",
        "export --tenant none": "none",
    }.items():
        code, _, err = run("audit", *wrong.split())
        assert code == 2 and words in err and "Traceback" not in err, err


def test_tenants_and_users(run: Run) -> None:
    lead_a_tenant(run)


def lead_a_tenant(run: Run) -> None:
    """And its first people."""
    assert run("tenants", "create", "acme")[0] == 0
    code, out, _ = run("tenants", "limit", "acme", "--rpm", "600", "--tokens-per-day", "5000000")
    assert code == 0 and "acme: 600 rpm, 5,000,000 tokens per day" in out
    assert json.loads(run("tenants", "list", "--json")[1])[0]["limits"]["requests_per_minute"] == 600
    assert [tenant["name"] for tenant in json.loads(run("tenants", "list", "--json")[1])] == ["acme", "default"]
    create = ("users", "create", "bob", "--role", "admin", "--tenant", "acme", "--password", "correct horse")
    code, out, _ = run(*create)
    assert code == 0 and "acme/bob" in out
    assert [user["role"] for user in json.loads(run("users", "list", "--tenant", "acme", "--json")[1])] == ["admin"]
    for last in (("remove", "bob"), ("role", "bob", "viewer")):
        code, _, err = run("users", *last, "--tenant", "acme")
        assert code == 2 and "last admin" in err
    eve = ("eve", "--tenant", "acme")
    assert run("users", "create", *eve, "--role", "viewer", "--password", "correct horse")[0] == 0
    assert json.loads(run("users", "role", "eve", "editor", "--tenant", "acme", "--json")[1])["role"] == "editor"
    assert json.loads(run("users", "remove", *eve, "--json")[1]) == {"removed": "eve"}
    assert "eve" not in run("users", "list", "--tenant", "acme")[1]
    assert run("users", "password", "bob", "--tenant", "acme", "--password", "battery staple")[0] == 0
    assert run("users", "password", "eve", "--password", "battery staple")[0] == 2
    assert run("tenants", "disable", "default")[0] == 2
    assert json.loads(run("tenants", "disable", "acme", "--json")[1])["disabled_at"]
    assert "disabled" in run("tenants", "list")[1]
    code, out, _ = run("tenants", "enable", "acme")
    assert code == 0 and "acme enabled" in out and "disabled" not in run("tenants", "list")[1]
