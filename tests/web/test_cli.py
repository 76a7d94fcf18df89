"""`loraplex` as it is typed: exit codes, words, JSON that programs read."""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer

import loraplex
from loraplex.registry.database.migrate import head
from loraplex.registry.report import Finding
from loraplex.web.adapter_tokenizers.files import TEMPLATE_FILE
from loraplex.web.cli.adapters.added import print_findings
from loraplex.web.cli.app import app
from loraplex.web.cli.later import Later
from loraplex.web.settings.settings import Settings

from .typed import Run, typed

KEY = "lp-cli-test-key-0123456789"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, checkpoint: Path) -> Run:
    """Call the command in this process: exit code, standard output, standard error."""
    for name in [name for name in os.environ if name.startswith("LORAPLEX_")]:
        monkeypatch.delenv(name)
    settings = {"DATA_DIR": tmp_path / "data", "MODEL": checkpoint, "SERVED_NAME": "tiny", "MIN_FREE_BYTES": 0}
    for name, value in settings.items():
        monkeypatch.setenv(f"LORAPLEX_{name}", str(value))

    return typed(monkeypatch, capsys)


def test_adapters_from_add_to_remove(run: Run, adapter_folders: list[Path]) -> None:
    assert run("adapters", "list") == (0, "No adapters yet. Add one with: loraplex adapters add NAME FOLDER\n", "")
    code, out, _ = run("adapters", "add", "support", adapter_folders[0])
    assert code == 0 and "support registered as version 1" in out and "pass" in out
    assert "its logits were not compared with the base's: no engine is running here" in out and "--server" in out
    code, out, _ = run("adapters", "add", "support", adapter_folders[0])
    assert code == 0 and "support is already version 1" in out
    code, out, _ = run("adapters", "add", "support", adapter_folders[1], "--json")
    added = json.loads(out)
    assert (code, added["name"], added["version"], added["created"]) == (0, "support", 2, True)
    assert added["findings"] and {finding["level"] for finding in added["findings"]} <= {"pass", "warn"}

    lead_an_adapter(run, added["digest"])


def lead_an_adapter(run: Run, digest: str) -> None:
    """`support` has two versions, the newer one with this digest; at the end it has none."""
    [listed] = json.loads(run("adapters", "list", "--json")[1])
    assert [version["number"] for version in listed["versions"]] == [2, 1] and listed["current"] == 2
    newest = listed["versions"][0]
    assert (newest["digest"], newest["rank"], newest["target_modules"]) == (digest, 4, ["q_proj", "v_proj"])
    assert json.loads(run("adapters", "show", "support", "--json")[1]) == listed
    for version in listed["versions"]:
        code, out, _ = run("adapters", "show", f"support@{version['number']}")
        assert code == 0 and f"support version {version['number']}, enabled" in out and version["digest"] in out
    for reference in ("support", "support@latest"):
        code, out, _ = run("adapters", "show", reference)
        assert code == 0 and digest in out and "pass" in out
    assert "support" in run("adapters", "list")[1]
    for reference, words in {
        "support@3": "has no version '3'. It has 2, 1.",
        "support@prod": "no version 'prod'",
    }.items():
        code, _, err = run("adapters", "show", reference)
        assert code == 2 and words in err

    for reference, number in (("support@1", 1), ("support", 2), ("support@prod", 2)):
        code, out, _ = run("adapters", "alias", reference, "prod")
        assert code == 0 and f"support@prod points at version {number}" in out
    route = json.loads(run("adapters", "alias", "support@1", "prod", "--json")[1])
    assert (route["adapter"], route["alias"], route["version"]) == ("support", "prod", 1)
    assert "support version 1," in run("adapters", "show", "support@prod")[1]

    code, out, _ = run("adapters", "remove", "support@2", "--yes", "--json")
    assert (code, json.loads(out)) == (0, {"removed": "support@2"})
    assert "support version 1," in run("adapters", "show", "support")[1]
    assert run("adapters", "remove", "support", "--yes")[0] == 0
    assert json.loads(run("adapters", "list", "--json")[1]) == []
    assert run("adapters", "list")[1].startswith("No adapters yet. Add one with: loraplex adapters ")
    for word in ("show", "remove"):
        code, _, err = run("adapters", word, "support")
        assert code == 2 and "support" in err and "Traceback" not in err


def test_without_a_server_what_lies_beside_an_adapter_stands_in_no_way(
    run: Run, adapter_folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainers save tokenizers there; and what a server takes from strangers bounds nothing that is added here."""
    folder = tmp_path / "run"
    shutil.copytree(adapter_folders[0], folder)
    (folder / TEMPLATE_FILE).write_text("{{ messages[0].content }}!")
    monkeypatch.setenv("LORAPLEX_MAX_ADAPTER_BYTES", "1000")
    code, out, err = run("adapters", "add", "support", folder)
    assert code == 0 and "the base's tokenizer and chat template are used instead" in out, out + err
    assert "Checked against the model " in err and "already on the server" not in out
    assert "files" not in json.loads(run("adapters", "add", "support", folder, "--json")[1])


def test_what_a_database_says_is_said(run: Run, tmp_path: Path) -> None:
    """And not that a server failed."""
    assert run("keys", "create", "one")[0] == 0
    with closing(sqlite3.connect(tmp_path / "data" / "loraplex.db")) as database:
        database.execute("ALTER TABLE audit RENAME TO gone")
    code, out, err = run("audit", "list")
    assert (code, out) == (2, "") and "the database is not usable: no such table: audit" in err


def test_another_tenants_adapters(run: Run, adapter_folders: list[Path]) -> None:
    code, _, err = run("adapters", "add", "sql", adapter_folders[0], "--tenant", "acme")
    assert code == 2 and "There is no tenant 'acme'" in err
    assert run("tenants", "create", "acme")[0] == 0
    lead_another_tenants_adapters(run, adapter_folders)


def lead_another_tenants_adapters(run: Run, folders: list[Path]) -> None:
    """Of acme, which has one at the end of the first half, and none at the end."""
    of_acme = ("--tenant", "acme")
    for folder in folders:
        assert run("adapters", "add", "sql", folder, *of_acme)[0] == 0
    assert json.loads(run("adapters", "list", "--json")[1]) == [], "the tenant default has none"
    [listed] = json.loads(run("adapters", "list", "--json", *of_acme)[1])
    assert [version["number"] for version in listed["versions"]] == [2, 1]
    assert "sql version 2" in run("adapters", "show", "sql", *of_acme)[1]
    assert run("adapters", "show", "sql")[0] == 2
    code, told, refused = run("adapters", "alias", "sql@1", "prod", *of_acme)
    assert code == 0 and "sql@prod points at version 1" in told, refused
    assert run("aliases", "set", "sql@prod", "1", "--candidate", "2=10", *of_acme)[0] == 0
    assert [route["alias"] for route in json.loads(run("aliases", "list", "--json", *of_acme)[1])] == ["prod"]
    assert json.loads(run("adapters", "profile", "sql", "--json", *of_acme)[1]) == {}
    assert run("adapters", "remove", "sql")[0] == 2
    assert run("adapters", "remove", "sql", "--yes", *of_acme)[0] == 0


def test_every_word_that_answers_something_does_so_in_json_too() -> None:
    """But for a server's log, and words that make or print a file."""

    def words(command: Any, *path: str) -> Iterator[tuple[str, set[str]]]:
        if isinstance(command, Later):
            command = command.written()
        for name, each in getattr(command, "commands", {}).items():
            yield from words(each, *path, name)
        if not hasattr(command, "commands"):
            yield " ".join(path), {option for parameter in command.params for option in parameter.opts}

    found = dict(words(typer.main.get_command(app)))
    assert {name for name, options in found.items() if "--json" not in options} == {
        *("serve", "backup", "restore", "audit export", "run-batch"),
    }


def test_findings_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """They quote keys and values of files from anywhere."""
    print_findings([Finding("config", "fail", "'[/q]' is not known", "Leave [bold] out.")])
    out = capsys.readouterr().out
    assert "'[/q]' is not known" in out and "Leave [bold] out." in out


def test_an_alias_moves_where_the_operator_lets_it(
    run: Run, adapter_folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in adapter_folders:
        run("adapters", "add", "sql", folder)
    assert run("adapters", "alias", "sql", "prod")[0] == 0
    assert json.loads(run("adapters", "show", "sql", "--json")[1])["aliases"] == {"prod": 2}
    monkeypatch.setenv("LORAPLEX_PROMOTION_MIN_AGREEMENT", "0.98")
    code, _, err = run("adapters", "alias", "sql@1", "prod")
    assert code == 2 and "Version 1 of 'sql' has no valid parity certificate" in err
    assert json.loads(run("adapters", "show", "sql", "--json")[1])["aliases"] == {"prod": 2}


def test_nothing_is_asked_about_an_adapter_that_is_not_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.confirm", lambda *_, **__: pytest.fail("it asked"))
    code, _, err = run("adapters", "remove", "nope")
    assert code == 2 and "nope" in err


def test_a_bad_adapter_is_refused_with_every_reason(run: Run, adapter_folders: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    code, _, err = run("adapters", "add", "bad", bad)
    assert code == 2 and "adapter_config.json is missing" in err
    (bad / "adapter_config.json").write_bytes((adapter_folders[0] / "adapter_config.json").read_bytes())
    (bad / "adapter_model.safetensors").write_bytes(b"\x80\x04not a tensor")
    code, out, _ = run("adapters", "add", "bad", bad)
    assert code == 1 and "fail" in out and "bad was not registered" in out
    code, out, _ = run("adapters", "add", "bad", bad, "--json")
    assert code == 1 and "fail" in {finding["level"] for finding in json.loads(out)["findings"]}
    code, _, err = run("adapters", "add", "../x", adapter_folders[0])
    assert code == 2 and "../x" in err
    code, _, err = run("adapters", "add", "tiny", adapter_folders[0])
    assert code == 2 and "base model" in err
    assert json.loads(run("adapters", "list", "--json")[1]) == []


def test_the_configuration_hides_secrets(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORAPLEX_API_KEY", KEY)
    monkeypatch.setenv("LORAPLEX_ADMIN_PASSWORD", "correct horse battery")
    monkeypatch.setenv("LORAPLEX_DATABASE_URL", "postgresql://me:open-sesame-91@db/loraplex")
    for arguments in (["config"], ["config", "--json"]):
        code, out, _ = run(*arguments)
        assert code == 0 and "served_name" in out
        assert not any(secret in out for secret in (KEY, "correct horse", "sesame-91"))
    values = json.loads(out)
    told = {name: (values[name]["value"], values[name]["source"]) for name in ("served_name", "api_key", "port")}
    assert told == {
        "served_name": ("tiny", "environment"),
        "api_key": ("********", "environment"),
        "port": (8000, "default"),
    }


def test_a_word_reads_the_file_in_the_data_folder_that_it_is_given(run: Run, tmp_path: Path) -> None:
    (tmp_path / "loraplex.toml").write_text("max_queue = 7\n")
    queue = json.loads(run("config", "--json", "--data-dir", tmp_path)[1])["max_queue"]
    assert (queue["value"], queue["source"]) == (7, "file")
    assert json.loads(run("config", "--json")[1])["max_queue"]["value"] == 512, "the option is this word's alone"


def test_the_database_is_migrated(run: Run) -> None:
    for _ in range(2):
        code, out, _ = run("db", "upgrade")
        assert code == 0 and out.endswith(f"is at {head()}\n")


def test_the_help_of_serve_speaks_the_users_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    code, out, _ = run("serve", "--help")
    shown = {
        words[0]: " ".join(words[1:]) for words in (line.strip("│ ").split() for line in out.splitlines()) if words
    }
    assert code == 0 and "<str>" not in out and "<bool>" not in out.replace("--help", "", 1).split("Server")[1]
    assert shown["--port"] == "NUMBER Port to listen on (default: 8000)"
    assert shown["--adapter-memory"].startswith("BYTES (4GiB) ")
    assert shown["--adapter-host-memory"].endswith("(default: 512MiB)")
    assert shown["--kv-cache-memory"].startswith("BYTES (4GiB) ")
    assert shown["--device"].startswith("auto|cpu|cuda ") and shown["--device"].endswith("(default: auto)")
    assert shown["--body-timeout"].startswith("SECONDS ") and shown["--body-timeout"].endswith("(default: 30)")
    assert shown["--data-dir"].startswith("FOLDER ") and "(default: /" in shown["--data-dir"]
    assert shown["--model"].startswith("FOLDER|HUB-ID ") and shown["--model"].endswith("(default: the demo model)")
    assert shown["--log-json"].endswith("(default: off)") and shown["--api-key"].startswith("TEXT ")
    assert {f"--{name.replace('_', '-')}" for name in Settings.model_fields} <= set(shown)


def test_the_version(run: Run) -> None:
    assert run("--version") == (0, f"{loraplex.__version__}\n", "")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"API_KEY": "password", "HOST": "0.0.0.0"}, "API key must have at least"),
        ({"API_KEY": "aaaaaaaaaaaaaaaaaaaaaaaa", "HOST": "0.0.0.0"}, "easily guessed"),
        ({"ADMIN_PASSWORD": "changeme-please"}, "easily guessed"),
        ({"PORT": "70000"}, "port"),
        ({"PORT": "none"}, "port"),
        ({"DTYPE": "int3"}, "dtype"),
        ({"MODEL": "no such/model name"}, "no such/model name"),
        ({"DATA_DIR": __file__}, "cannot be created: File exists"),
        ({"DATA_DIR": "/proc/none"}, "cannot be created: No such file"),
        ({"KV_CACHE_MEMORY": "much"}, "kv_cache_memory"),
    ],
)
def test_serve_refuses_in_words(
    run: Run, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], words: str
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"LORAPLEX_{name}", value)
    if "PORT" not in settings:
        monkeypatch.setenv("LORAPLEX_PORT", "49151")
    code, _, err = run("serve")
    assert code == 2 and words in err and "Traceback" not in err
    assert err.startswith("loraplex: ") and len(err) < 600


def test_serve_names_a_free_port_when_the_wanted_one_is_taken(run: Run) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, _, err = run("serve", "--port", str(port))
    assert code == 2 and f"port {port} on 127.0.0.1 is in use" in err and "--port " in err


def test_as_a_process_of_its_own() -> None:
    shown = subprocess.run([sys.executable, "-m", "loraplex", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"{loraplex.__version__}\n"
    helped = subprocess.run([sys.executable, "-m", "loraplex", "--help"], capture_output=True, text=True, check=True)
    assert all(word in helped.stdout for word in ("serve", "adapters", "db", "doctor", "config", "bench"))


def test_a_serving_profile_is_set_shown_and_removed(run: Run, adapter_folders: list[Path], tmp_path: Path) -> None:
    for folder in adapter_folders:
        run("adapters", "add", "sql", folder)
    file, profile = tmp_path / "profile.json", {"system_prompt": "Be brief.", "temperature": 0.5, "stop": ["\n"]}
    file.write_text(json.dumps(profile))
    assert "sql@2 has no serving profile" in run("adapters", "profile", "sql")[1]
    code, out, _ = run("adapters", "profile", "sql", "--file", file)
    assert code == 0 and "sql@2 has a serving profile" in out and "Be brief." in out
    assert json.loads(run("adapters", "profile", "sql", "--show", "--json")[1]) == profile
    assert json.loads(run("adapters", "profile", "sql@1", "--json")[1]) == {}
    for wrong, words in (
        ('{"temperature": 101}', "profile.json: temperature"),
        ('{"chat_template": "x"}', "adapter_tokenizers"),
        ('{"json_schema": {"type": "foo"}}', "json_schema cannot be used: Invalid type: foo"),
        ("[]", "JSON object"),
        ("{", "not valid JSON"),
    ):
        file.write_text(wrong)
        code, _, err = run("adapters", "profile", "sql", "--file", file)
        assert code == 2 and words in err and "Traceback" not in err, err
    code, _, err = run("adapters", "profile", "sql", "--file", tmp_path / "absent.json")
    assert code == 2 and "absent.json cannot be read" in err
    assert run("adapters", "profile", "sql", "--show", "--clear")[0] == 2
    assert json.loads(run("adapters", "profile", "sql", "--json")[1]) == profile
    assert "no serving profile" in run("adapters", "profile", "sql", "--clear")[1]
    assert run("adapters", "profile", "nope")[0] == 2
