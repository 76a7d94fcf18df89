"""`loraplex keys`, `usage` and `aliases` over a server's API, as they are typed on another machine."""

import json
import time
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from loraplex.registry.audit import AuditFilter
from loraplex.web.audit.chain_check import ChainCheck
from loraplex.web.settings.running_server import announced
from loraplex.web.state import State

from .settings.test_running_server import told
from .test_aliases_word import lead_a_canary
from .test_cli import lead_an_adapter
from .test_push_word import port, run
from .test_tenancy_words import lead_a_tenant
from .typed import Run

__all__ = ["port", "run"]
WANTED = AuditFilter(action="tenant.create")


def test_keys_from_create_to_revoke(run: Run, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run("keys", "create", "notebook", "--adapter", "sql", "--rpm", "60", "--expires", "30d", "--json")
    made = json.loads(out)
    assert (code, made["adapters"], made["limits"]["requests_per_minute"]) == (0, ["sql"], 60), err
    assert state.registry.snapshots.current.authenticate(made["token"]).name == "notebook"
    assert run("keys", "create", "plain")[1].startswith("lp-")
    code, out, _ = run("keys", "limit", made["prefix"], "--tokens-per-day", "5000")
    assert code == 0 and "5,000 tokens per day" in out and "rpm" not in out
    limited = json.loads(run("keys", "limit", made["prefix"], "--tpm", "70", "--json")[1])
    assert (limited["limits"]["tokens_per_minute"], limited["limits"]["tokens_per_day"]) == (70, None)
    run("keys", "limit", made["prefix"], "--tokens-per-day", "5000")
    assert json.loads(run("keys", "revoke", made["prefix"], "--json")[1]) == {"revoked": made["prefix"]}
    listed = {key["name"]: key for key in json.loads(run("keys", "list", "--json")[1])}
    assert listed["notebook"]["revoked_at"] and not listed["plain"]["revoked_at"]
    monkeypatch.setattr("loraplex.web.cli.access.keys.console", Console(width=80))
    assert made["prefix"] in run("keys", "list")[1]
    monkeypatch.setattr("loraplex.web.cli.access.keys.console", Console(width=200))
    table = run("keys", "list")[1]
    assert made["prefix"] in table and "5,000 tokens per day" in table and made["token"] not in table
    by = state.registry.keys.get(made["prefix"], "default").created_by
    assert by.startswith("key:"), "the audit log names who asked"


def test_what_is_refused_is_said_in_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, reason in {
        "keys revoke 0123456789ab": "There is no API key",
        "keys list --tenant none": "none",
        "usage --by colour": "colour",
        "aliases list none": "There is no adapter 'none'",
        "aliases list --tenant acme": "There is no tenant 'acme'",
        "adapters list --tenant acme": "There is no tenant 'acme'",
        "adapters remove none --tenant default": "There is no adapter 'none'",
        "adapters show none": "There is no adapter 'none'",
        "adapters remove none": "There is no adapter 'none'",
        "users remove eve": "eve",
        "users create eve --role boss --password correct-horse": "role",
        "tenants disable default": "default",
        "audit list --tenant none": "none",
        "audit list --from yesterday": "must be a day such as",
        "audit export --action x --from yesterday": "must be a day such as",
        "audit list --tenant default --everyone": "cannot be combined",
        "audit export --server http://127.0.0.1:1": "cannot be reached",
        "adapters add support ./runs": "adapter_config.json is missing",
        "keys list --key lp-wrong": "Incorrect API key",
        "keys list --server http://127.0.0.1:1": "cannot be reached",
    }.items():
        code, out, err = run(*words.split())
        assert code == 2 and reason in err and not out, (words, err)
    monkeypatch.delenv("LORAPLEX_KEY")
    assert "LORAPLEX_KEY" in run("keys", "list")[2]


def test_a_bench_for_people_and_programs(
    run: Run, port: int, state: State, adapter_folders: list[Path], tmp_path: Path
) -> None:
    assert run("adapters", "add", "sql", adapter_folders[0])[0] == 0
    few = ("--concurrent", "2", "--prompt-tokens", "4", "--output-tokens", "3", "--rounds", "1")
    few = (*few, "--data-dir", str(state.settings.data_dir))
    code, _, err = run("bench", *few[:-1], tmp_path)
    assert code == 2 and f"no server is running on the data folder {tmp_path}" in err
    with announced(state.settings.data_dir, told(state, port)):
        bench_for_people_and_programs(run, few)


def bench_for_people_and_programs(run: Run, few: tuple[str, ...]) -> None:
    code, out, err = run("bench", *few, "--json")
    found = {one["traffic"]: one for one in json.loads(out)}
    assert (code, list(found)) == (0, ["base tiny", "1 adapters"]), err
    assert all(one["tokens_per_second"] > 0 and one["ttft_ms"] > 0 for one in found.values())
    table = run("bench", *few)[1]
    assert "tokens/s" in table and "base tiny" in table


def test_usage_in_a_table_json_and_csv(run: Run, port: int, admin: dict[str, str]) -> None:
    assert run("usage") == (0, "No usage.\n", "")
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
    assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, headers=admin).status_code == 200
    deadline = time.monotonic() + 60
    while not json.loads(run("usage", "--json")[1])["data"]:
        assert time.monotonic() < deadline
    prefix = admin["authorization"].removeprefix("Bearer lp-").partition("_")[0]
    found = json.loads(run("usage", "--key-prefix", prefix, "--by", "adapter", "--json")[1])
    assert [row["requests"] for row in found["data"]] == [1] and found["total"]["completion_tokens"] == 2
    head, *rows = run("usage", "--by", "day,adapter", "--csv")[1].splitlines()
    assert head.startswith("tenant,from,to,day,adapter_name,adapter_version,adapter_digest,") and len(rows) == 1
    assert "requests" in run("usage")[1]
    assert run("usage", "--user", "nobody")[1] == "No usage.\n"


def test_a_canary(run: Run, state: State, adapter_folders: list[Path]) -> None:
    for folder in adapter_folders:
        assert run("adapters", "push", folder, "--name", "sql")[0] == 0
    lead_a_canary(run)
    assert run("aliases", "set", "sql@live", "latest", "--candidate", "1=5")[0] == 0
    [adapter] = state.registry.snapshots.current.of_tenant("default")
    assert dict(adapter.routes["live"].weights) == {2: 95, 1: 5}


def test_adapters_from_list_to_remove(run: Run, adapter_folders: list[Path], tmp_path: Path) -> None:
    pushed = [
        json.loads(run("adapters", "push", folder, "--name", "support", "--json")[1]) for folder in adapter_folders
    ]
    file = tmp_path / "profile.json"
    file.write_text('{"system_prompt": "Be brief."}')
    code, out, err = run("adapters", "profile", "support", "--file", file)
    assert code == 0 and "support@2 has a serving profile" in out and "Be brief." in out, err
    assert json.loads(run("adapters", "profile", "support@2", "--json")[1]) == {"system_prompt": "Be brief."}
    assert "support@2 has no serving profile" in run("adapters", "profile", "support", "--clear")[1]
    file.write_text('{"colour": "blue"}')
    assert "colour" in run("adapters", "profile", "support", "--file", file)[2]
    lead_an_adapter(run, pushed[1]["digest"])


def test_tenants_and_users(run: Run, state: State) -> None:
    lead_a_tenant(run)
    made = state.registry.audit.search(AuditFilter("acme", action="user.create", subject="bob"))
    assert [entry.actor.partition(":")[0] for entry in made] == ["default/key"], "the audit log names who asked"


def test_a_tenants_admin_works_in_it_without_naming_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("tenants", "create", "acme")
    token = run("keys", "create", "ci", "--scope", "admin", "--tenant", "acme")[1].strip()
    run("keys", "create", "of-default")
    monkeypatch.setenv("LORAPLEX_KEY", token)
    code, out, _ = run("users", "create", "bob", "--role", "admin", "--password", "correct horse")
    assert code == 0 and "bob logs in as acme/bob" in out
    rows = json.loads(run("audit", "list", "--json")[1])
    assert {row["tenant"] for row in rows} == {"acme"} and rows[0]["action"] == "user.create"
    assert "all tenants" in run("audit", "list", "--everyone")[2]
    assert json.loads(run("audit", "verify", "--json")[1]) == {"intact": True}
    assert "all rows verified" in run("audit", "verify")[1]
    assert "or does not contain this head" in run("audit", "verify", "--head", "f" * 64)[1]
    assert run("tenants", "list")[0] == 2
    for words in ("users list", "keys list", "usage"):
        code, out, err = run(*words.split(), "--tenant", "default")
        assert (code, out) == (2, "") and "default" in err, words


def test_the_audit_log(run: Run, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three"):
        run("tenants", "create", name)
    code, out, _ = run("audit", "verify", "--json")
    chain = json.loads(out)
    assert code == 0 and chain["intact"] and chain["head"] in run("audit", "verify", "--head", chain["head"])[1]
    code, out, _ = run("audit", "verify", "--head", "f" * 64)
    assert code == 1 and "not in this chain" in out

    monkeypatch.setattr("loraplex.web.cli.access.audit.PAGE", 2)
    made = ("--action", "tenant.create", "--everyone")
    rows = json.loads(run("audit", "list", *made, "--json")[1])
    assert [row["subject"] for row in rows] == ["tenant:three", "tenant:two", "tenant:one"]
    assert [row["id"] for row in rows] == [entry.id for entry in state.registry.audit.search(WANTED)]
    assert len(json.loads(run("audit", "list", *made, "--limit", "2", "--json")[1])) == 2
    older = json.loads(run("audit", "list", *made, "--before", str(rows[0]["id"]), "--json")[1])
    assert older == rows[1:]
    assert "tenant:two" in run("audit", "list", *made)[1]
    lines = run("audit", "export", *made, "--format", "jsonl")[1].splitlines()
    assert [json.loads(line) for line in lines] == rows
    head, *cells = run("audit", "export", *made)[1].splitlines()
    assert head.startswith("id,at,tenant,actor,actor_name,action,") and len(cells) == 3

    with state.registry.database.write() as session:
        session.connection().exec_driver_sql("UPDATE audit SET action = 'tenant.created' WHERE id = 2")
    state.chain = ChainCheck(state.registry.audit.verify)
    code, out, _ = run("audit", "verify")
    assert code == 1 and "Row 2" in out
