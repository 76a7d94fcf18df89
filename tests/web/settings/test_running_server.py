"""Words beside a running server: they find it by its data folder, and ask it, from wherever they are typed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgspec
import pytest

from loraplex.registry.audit import AuditFilter
from loraplex.registry.registry import Registry
from loraplex.web.backup import DATABASE
from loraplex.web.settings.running_server import FILES, RunningServer, announced, local_url, running_server
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State

from ..conftest import KEY
from ..test_aliases_word import lead_a_canary
from ..test_cli import lead_an_adapter, lead_another_tenants_adapters
from ..test_push_word import port
from ..test_tenancy_words import lead_a_tenant
from ..typed import Run, typed

__all__ = ["port"]
HOLD = """
import sys, time
from pathlib import Path
from loraplex.web.settings.running_server import RunningServer, announced
server = RunningServer("http://127.0.0.1:1", "lp-key", 1, "2026-11-28T10:00:00+00:00", "tiny", "/models/tiny")
with announced(Path(sys.argv[1]), server):
    print("announced", flush=True)
    time.sleep(600)
"""


def told(state: State, port: int) -> RunningServer:
    url, started_at = f"http://127.0.0.1:{port}", "2026-11-28T10:00:00+00:00"
    return RunningServer(url, state.local_key, os.getpid(), started_at, state.base.name, str(state.model_folder))


@pytest.fixture(params=["--data-dir", "LORAPLEX_DATA_DIR"])
def beside(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: State,
    port: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    """Typed in another folder, without any other setting of the server; the database itself is out of reach."""
    for name in [name for name in os.environ if name.startswith("LORAPLEX_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    folder = state.settings.data_dir
    option = ("--data-dir", str(folder)) if request.param == "--data-dir" else ()
    if not option:
        monkeypatch.setenv(request.param, str(folder))
    run = typed(monkeypatch, capsys)

    def out_of_reach(*_: object) -> None:
        pytest.fail("it opened the database")

    monkeypatch.setattr(Registry, "open", out_of_reach)
    with announced(folder, told(state, port)):
        yield lambda *words: run(*words, *option)


def test_adapters(beside: Run, state: State, adapter_folders: list[Path], tmp_path: Path) -> None:
    assert "No adapters yet" in beside("adapters", "list")[1]
    code, out, err = beside("adapters", "add", "support", adapter_folders[0])
    assert code == 0 and "support registered as version 1" in out and not err
    assert "the engine ran a prompt" in out, "the running engine was asked"
    added = json.loads(beside("adapters", "add", "support", adapter_folders[1], "--json")[1])
    assert (added["version"], added["created"]) == (2, True)
    assert beside("adapters", "push", adapter_folders[1], "--name", "support")[0] == 0
    assert "support version 2" in beside("adapters", "show", "support")[1]
    (tmp_path / "profile.json").write_text('{"temperature": 0.5}')
    code, out, err = beside("adapters", "profile", "support", "--file", tmp_path / "profile.json")
    assert code == 0 and "0.5" in out, err
    by = state.registry.audit.search(AuditFilter(action="adapter.add"))[0].actor
    assert by == "cli", "as on the database itself"
    lead_an_adapter(beside, added["digest"])


def test_a_refused_adapter(beside: Run, adapter_folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_bytes((adapter_folders[0] / "adapter_config.json").read_bytes())
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x80\x04not a tensor")
    code, out, _ = beside("adapters", "add", "bad", tmp_path)
    assert code == 1 and "fail" in out and "bad was not registered" in out
    code, _, err = beside("adapters", "add", "tiny", adapter_folders[0])
    assert code == 2 and "base model" in err


def test_another_tenants_adapters(beside: Run, state: State, adapter_folders: list[Path]) -> None:
    code, _, err = beside("adapters", "add", "sql", adapter_folders[0], "--tenant", "acme")
    assert code == 2 and "There is no tenant 'acme'" in err
    assert beside("tenants", "create", "acme")[0] == 0
    lead_another_tenants_adapters(beside, adapter_folders)
    assert not state.registry.adapters.list("acme")


def test_a_canary(beside: Run, adapter_folders: list[Path]) -> None:
    for folder in adapter_folders:
        assert beside("adapters", "add", "sql", folder)[0] == 0
    lead_a_canary(beside)


def test_tenants_users_keys_usage_and_the_audit_log(beside: Run, state: State) -> None:
    lead_a_tenant(beside)
    assert beside("tenants", "enable", "acme")[0] == 0
    made = json.loads(beside("keys", "create", "ci", "--tenant", "acme", "--json")[1])
    assert [key["name"] for key in json.loads(beside("keys", "list", "--tenant", "acme", "--json")[1])] == ["ci"]
    assert "60 rpm" in beside("keys", "limit", made["prefix"], "--rpm", "60", "--tenant", "acme")[1]
    assert beside("keys", "revoke", made["prefix"], "--tenant", "acme")[0] == 0
    assert beside("usage") == (0, "No usage.\n", "")
    assert beside("audit", "verify")[0] == 0
    rows = json.loads(beside("audit", "list", "--json")[1])
    assert {row["tenant"] for row in rows} >= {"default", "acme"}, "of all tenants, as on the database itself"
    acme = json.loads(beside("audit", "list", "--tenant", "acme", "--json")[1])
    assert [row["hash"] for row in acme] == [row["hash"] for row in rows if row["tenant"] == "acme"]
    assert len(beside("audit", "export", "--tenant", "acme")[1].splitlines()) == len(acme) + 1


def test_the_settings_are_those_of_the_server(
    beside: Run, state: State, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LORAPLEX_DRAIN_SECONDS", "7")
    values = json.loads(beside("config", "--json")[1])
    assert values["model"]["value"] == str(checkpoint) and values["drain_seconds"]["value"] == 0.5
    assert values["admin_password"]["value"] == "********"
    shown = beside("config")[1]
    assert "served_name" in shown and "tiny" in shown
    code, out, _ = beside("backup", state.settings.data_dir / "kept.tar")
    assert code == 0 and not out
    names = subprocess.run(["tar", "tf", state.settings.data_dir / "kept.tar"], capture_output=True, text=True).stdout
    assert DATABASE in names and "server-" not in names
    assert beside("db", "upgrade")[1].startswith(f"sqlite:///{state.settings.data_dir}")


@pytest.mark.parametrize(
    ("word", "work"), [("calibrate-kv", "tools.calibrate_kv._calibrate"), ("certify", "adapters.certify.find_target")]
)
def test_words_with_flags_take_the_settings_of_the_server(
    beside: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, word: str, work: str
) -> None:
    """But for those that a flag gives."""
    seen: list[Settings] = []

    def see(settings: Settings, *_: object) -> None:
        seen.append(settings)
        raise ValueError("seen")

    monkeypatch.setattr(f"loraplex.web.cli.{work}", see)
    monkeypatch.setenv("LORAPLEX_DRAIN_SECONDS", "7")
    assert beside(word, "--kv-cache-dtype", "int8")[0] == 2
    [settings] = seen
    assert (settings.model, settings.base_name, settings.drain_seconds) == (str(checkpoint), "tiny", 0.5)
    assert settings.kv_cache_dtype == "int8"


def test_a_key_that_is_set_for_other_servers_is_not_asked_with(beside: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """README has clients keep an inference key in LORAPLEX_KEY."""
    monkeypatch.setenv("LORAPLEX_KEY", KEY)
    assert beside("keys", "list", "--json")[0] == 0


def test_a_named_server_is_asked_with_a_key(
    beside: Run, admin: dict[str, str], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HTTP_PROXY")
    code, _, err = beside("keys", "list", "--server", f"http://127.0.0.1:{port}")
    assert code == 2 and "LORAPLEX_KEY" in err
    key = admin["authorization"].removeprefix("Bearer ")
    assert beside("keys", "list", "--server", f"http://127.0.0.1:{port}", "--key", key)[0] == 0


def test_one_that_does_not_answer_is_told_of(
    state: State, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], adapter_folders: list[Path]
) -> None:
    """As in another container, or stopped: the database works, and the model is still that of the server."""
    run, folder = typed(monkeypatch, capsys), state.settings.data_dir
    monkeypatch.setenv("LORAPLEX_MIN_FREE_BYTES", "0")
    with announced(folder, told(state, port=1)):
        code, out, err = run("adapters", "add", "support", adapter_folders[0], "--data-dir", folder)
        assert code == 0 and "no engine is running here" in out
        assert "does not answer at http://127.0.0.1:1" in err and f"process {os.getpid()}" in err
        assert f"Checked against the model {state.model_folder}, " in err
        assert "support" in run("adapters", "list", "--data-dir", folder)[1]


def test_another_program_at_its_address_is_told_of(
    state: State, port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = typed(monkeypatch, capsys), state.settings.data_dir
    server = told(state, port)
    state.local_key = "another"
    with announced(folder, server):
        code, _, err = run("keys", "list", "--data-dir", folder)
        assert code == 0 and "another program answers" in err


def test_one_that_is_stopping_is_told_of(
    state: State, port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = typed(monkeypatch, capsys), state.settings.data_dir
    monkeypatch.setattr(state, "settings", state.settings.model_copy(update={"drain_seconds": 20}))
    upload = state.uploads.hold("default", "test")  # so that it waits for something
    with upload, announced(folder, told(state, port)):
        state.stopping.set()
        code, _, err = run("keys", "list", "--data-dir", folder)
        assert code == 0 and "it says 503, as while it stops" in err


def test_the_file_is_for_this_user_alone_and_goes_with_the_server(state: State) -> None:
    folder = state.settings.data_dir
    server = told(state, 8000)
    with announced(folder, server):
        [file] = folder.glob(FILES)
        assert file.stat().st_mode & 0o777 == 0o600
        assert running_server(folder) == server and server.key not in repr(server)
    assert running_server(folder) is None and not list(folder.glob("server*"))


def test_of_several_the_one_that_started_last_and_still_runs_is_asked(tmp_path: Path, state: State) -> None:
    servers = [
        msgspec.structs.replace(told(state, port), started_at=f"2026-11-28T10:00:00.00000{port}+00:00")
        for port in (1, 2, 3)
    ]
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(announced(tmp_path, servers[0]))
        second.enter_context(announced(tmp_path, servers[1]))
        with announced(tmp_path, servers[2]):
            assert running_server(tmp_path) == servers[2]
        assert running_server(tmp_path) == servers[1]
        first.close()
        assert running_server(tmp_path) == servers[1]
    assert running_server(tmp_path) is None and not list(tmp_path.glob("server*"))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_was_killed_is_gone(tmp_path: Path, end: signal.Signals) -> None:
    """Whoever has its process id by now."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "announced\n"
    assert running_server(tmp_path) is not None
    process.send_signal(end)
    process.wait()
    process.stdout.close()
    [left] = tmp_path.glob(FILES)
    assert running_server(tmp_path) is None
    with announced(tmp_path, RunningServer("http://127.0.0.1:2", "k", 2, "", "tiny", "/")):
        assert running_server(tmp_path) is not None and not left.exists()


def test_a_folder_without_a_server(tmp_path: Path) -> None:
    assert running_server(tmp_path) is None and running_server(tmp_path / "none") is None
    (tmp_path / "server-1.json").write_text("{")
    assert running_server(tmp_path) is None, "nobody holds it"


def test_another_users_folder_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "server-1.json").touch()
    for way in ("open", "iterdir"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, way, refused)
            words = r"belongs to another user\. Run this as that user, or use the server with a key"
            with pytest.raises(ValueError, match=words):
                running_server(tmp_path)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9"),
        ("0.0.0.0", "http://127.0.0.1:9"),
        ("::", "http://[::1]:9"),
        ("10.0.0.5", "http://10.0.0.5:9"),
    ],
)
def test_where_this_machine_reaches_it(host: str, url: str) -> None:
    assert local_url(host, 9) == url


async def test_the_key_is_the_operators(client: httpx.AsyncClient, state: State) -> None:
    headers = {"authorization": f"Bearer {state.local_key}"}
    me = (await client.get("/api/v1/me", headers=headers)).json()
    assert (me["tenant"], me["actor"]) == ("default", "cli") and "operate" in me["permissions"]
