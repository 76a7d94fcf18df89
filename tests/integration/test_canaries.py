"""No secret leaks: a server whose every secret is a canary is led through all it can do, well and badly."""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.ollama.elsewhere import INSTEAD
from tests.registry.postgres import find_binaries, find_program, private_server
from tests.web.fake_hub import COMMIT, REPOSITORY, FakeHub
from tests.web.test_access import MATRIX
from tests.web.typed import Run, typed

from .canaries import Canaries, Walk
from .connections import attempts, connections_of, watch_network
from .live_server import LiveServer, environment
from .talk import CHAT, COMPLETIONS, greedy, upload

KNOWN = {"filename": CONFIG_FILE, "number": "1", "tenant": "acme", "user": "bob", "alias": "latest"}
ENDLESS = "GET /dashboard/live"
SHOWN_ONCE = {"POST /api/v1/keys", "POST /keys"}
"""Their answers have the key that was made, which is the one time that it is shown."""
SERVED_ANYWAY = {"POST /login", "POST /logout", "POST /certify", "POST /api/v1/engine/certify"}
"""Whatever the body says."""

FAULT = "ALTER TABLE serving_profiles ADD CONSTRAINT refuse CHECK (false) NOT VALID"
"""The statement that has the values fails, and not one before it that asks for the row; its DETAIL quotes the row."""


@pytest.fixture(scope="module")
def canaries() -> Canaries:
    return Canaries()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canaries")


@pytest.fixture(scope="module")
def database(canaries: Canaries) -> Iterator[str]:
    """Of a PostgreSQL that believes any password."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL: install Debian's postgresql")
    with private_server(binaries) as url:
        yield make_url(url).set(password=canaries.secret("database password")).render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def hub(adapter_folders: dict[str, Path]) -> Iterator[FakeHub]:
    with FakeHub({name: (adapter_folders["one"] / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)}) as hub:
        yield hub


@pytest.fixture(scope="module")
def walk(
    folder: Path, checkpoint: Path, adapter_folders: dict[str, Path], database: str, hub: FakeHub, canaries: Canaries
) -> Iterator[Walk]:
    """The server after everything was done to it."""
    files = {}
    for name in ("admin_password", "api_key"):
        files[f"{name}_file"] = folder / name
        files[f"{name}_file"].write_text(canaries.secret(name))
        files[f"{name}_file"].chmod(0o600)
    given = {"database_url": database, "log_level": "debug", "adapter_hub": True, "certify_uploads": False}
    server = LiveServer(folder, checkpoint, num_kv_blocks=256, **files, **given)
    del server.settings["admin_password"]
    with pytest.MonkeyPatch.context() as patch:
        (folder / "tmp").mkdir()
        patch.setenv("TMPDIR", str(folder / "tmp"))
        patch.setenv("HF_TOKEN", canaries.secret("hub token"))
        patch.setenv("HF_ENDPOINT", hub.address)
        watch_network(patch, folder)
        try:
            server.start()
            walk = Walk(server, canaries, hub)
            go(walk, adapter_folders["eight"], database)
            yield walk
        finally:
            server.end()


def go(walk: Walk, adapter: Path, database: str) -> None:
    session = log_in(walk)
    keys = make_tenants(walk, session)
    use_adapters(walk, keys, adapter)
    from_elsewhere(walk, keys["operator"])
    acme = walk.with_key("acme", keys["acme"])
    for client in (session, acme, walk.with_key("rival", keys["rival"])):
        read_everything(client)
    for client in (session, acme, walk.client("nobody")):
        send_nonsense(client, walk.canaries)
    a_fault_of_ours(acme, walk.canaries, database)


def log_in(walk: Walk) -> httpx.Client:
    """The administrator, after some wrong tries."""
    canaries = walk.canaries
    person = walk.client("session", origin=walk.server.url)
    typed_wrong = {"user": "admin", "password": canaries.secret("wrong password")}
    assert person.post("/login", data=typed_wrong).status_code == 401
    assert person.post("/login", data=typed_wrong, headers={"origin": "http://evil.example"}).status_code == 403
    walk.unheard("/login", data={"user": canaries.secret("password as user"), "password": "x"})
    right = {"user": "admin", "password": canaries.nowhere["admin_password"]}
    assert person.post("/login", data=right).status_code == 303
    [cookie] = person.cookies.jar
    assert cookie.value is not None
    canaries.note("session cookie", cookie.value)
    token = re.search(r'name="csrf-token" content="([^"]+)"', person.get("/").text)
    assert token is not None
    person.headers["x-csrf-token"] = token[1]
    return person


def make_tenants(walk: Walk, session: httpx.Client) -> dict[str, str]:
    """Keys by who has them: the operator, the tenant whose content is private, and another one."""
    canaries, keys = walk.canaries, {}
    for tenant in ("acme", "rival"):
        assert session.post("/api/v1/tenants", json={"name": tenant}).status_code == 201
    for name, tenant in (("operator", "default"), ("acme", "acme"), ("rival", "rival")):
        made = session.post(f"/api/v1/keys?tenant={tenant}", json={"name": name, "scopes": ["admin"]})
        assert made.status_code == 201, made.text
        keys[name] = canaries.note(f"key of {name}", made.json()["token"])
        user = {"name": "bob", "password": canaries.secret(f"password of bob in {tenant}"), "role": "viewer"}
        assert session.post(f"/api/v1/users?tenant={tenant}", json=user).status_code == 201
    form = {"name": "by form", "scope_inference": "on", "expires": "", "csrf_token": session.headers["x-csrf-token"]}
    shown = re.search(r"lp-[0-9a-f]{12}_[\w-]+", session.post("/keys", data=form).text)
    assert shown is not None
    canaries.note("key made by the form", shown[0])
    changed = {"current": canaries.secret("wrong current password"), "new": canaries.secret("new password")}
    assert session.put("/api/v1/me/password", json=changed).status_code == 400
    return keys


def use_adapters(walk: Walk, keys: dict[str, str], adapter: Path) -> None:
    """acme uploads, gives a profile, asks; and asks for what is refused."""
    canaries, acme = walk.canaries, walk.with_key("acme", keys["acme"])
    own = walk.server.data_dir.parent / "own"
    shutil.copytree(adapter, own)
    config = json.loads((own / CONFIG_FILE).read_text())
    config["base_model_name_or_path"] = canaries.text("base model of an adapter")
    (own / CONFIG_FILE).write_text(json.dumps(config))
    upload(acme, "support", own)
    profile = {"system_prompt": canaries.text("system prompt")}
    assert acme.put("/api/v1/adapters/support/profile", json=profile).status_code == 200
    prompt = canaries.text("prompt")
    chat = {"model": "support", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4}
    for body in (chat, {**chat, "stream": True}):
        assert acme.post(CHAT, json=body).status_code == 200
        assert acme.post(COMPLETIONS, json=greedy("support", prompt, 4, stream="stream" in body)).status_code == 200
    for wrong in (
        {"temperature": -1},
        {"model": "nobody"},
        {"max_tokens": 10**9},
        {"tools": prompt},
        {"stop": [prompt, 5]},
    ):
        refused = acme.post(CHAT, json={**chat, **wrong})
        assert refused.status_code in (400, 404), refused.text
    assert acme.post(CHAT, content=f'{{"messages": "{prompt}').status_code == 400


def from_elsewhere(walk: Walk, operator: str) -> None:
    """Adapters from the hub, and from addresses in which a secret stands."""
    client, secret = walk.with_key("operator", operator), walk.canaries.secret("secret of an address")
    load = "/v1/load_lora_adapter"
    fine = client.post(load, json={"lora_name": "fetched", "lora_path": f"{REPOSITORY}@{COMMIT}"})
    assert fine.status_code == 200, fine.text
    for path in (f"https://bob:{secret}@hooks.example/services/{secret}", f"acme/none@{COMMIT}", f"/{secret}/adapter"):
        walk.unheard(load, json={"lora_name": "x", "lora_path": path}, authorization=f"Bearer {operator}")
    walk.hub.refusal = 403
    assert client.post(load, json={"lora_name": "y", "lora_path": f"{REPOSITORY}@{COMMIT}"}).status_code == 502
    walk.hub.refusal = None


def read_everything(client: httpx.Client) -> None:
    """Every route that only shows, with a name that there is, and one that there is not."""
    for route in MATRIX:
        method, path = route.split(" ")
        if method != "GET" or route == ENDLESS:
            continue
        for name in ("support", "nobody") if "{" in path else ("",):
            names = ("name", "reference", "prefix", "file_id", "batch_id", "response_id")
            filled = path.replace(":path", "").format_map(KNOWN | dict.fromkeys(names, name))
            html = {} if path.startswith(("/v1", "/api")) else {"accept": "text/html"}
            assert client.get(filled, headers=html).status_code < 500, filled


def send_nonsense(client: httpx.Client, canaries: Canaries) -> None:
    """To every route that changes something: what it refuses, with secrets where they do not belong. Pages may answer
    200 with what is wrong in words."""
    secret = canaries.secret("secret in the wrong place")
    fields = dict.fromkeys(("password", "current", "new", "token", "api_key", "csrf_token", "extra"), secret)
    headers = {"x-content-sha256": secret, "x-csrf-token": secret}
    for route in MATRIX:
        method, path = route.split(" ")
        if method == "GET" or route in SERVED_ANYWAY:
            continue
        filled = re.sub(r"{\w+(:path)?}", "nobody", path)
        json_body: dict[str, Any] = {**fields, "name": 5, "scopes": secret, "limits": {secret[:4]: 1}}
        is_page = not path.startswith(("/v1", "/api"))
        kwargs: dict[str, Any] = {"data": fields} if is_page else {"json": json_body}
        status = client.request(method, filled, headers=headers, **kwargs).status_code
        is_elsewhere = status == 501 and path in INSTEAD
        assert 400 <= status < 500 or (is_page and status == 200) or is_elsewhere, (route, status)
    wrong_key = canaries.secret("wrong key")
    for path in ("/v1/models", "/api/v1/keys", "/metrics", "/"):
        for sent in (f"Bearer {wrong_key}", f"Bearer lp-0123456789ab_{wrong_key}", f"Basic {wrong_key}", wrong_key):
            client.get(path, headers={"authorization": sent})
        client.get(path, params={"api_key": wrong_key}, headers={"cookie": f"loraplex_session={wrong_key}"})


def a_fault_of_ours(acme: httpx.Client, canaries: Canaries, database: str) -> None:
    """A statement with a tenant's text in it fails half-way: the client gets a 500, the log a trace."""
    change_database(database, FAULT)
    try:
        body = {"system_prompt": canaries.text("another system prompt")}
        for accept in ("*/*", "text/html"):
            answer = acme.put("/api/v1/adapters/support/profile", json=body, headers={"accept": accept})
            assert answer.status_code == 500, answer.text
    finally:
        change_database(database, "ALTER TABLE serving_profiles DROP CONSTRAINT refuse")


def change_database(url: str, statement: str) -> None:
    subprocess.run([find_program("psql"), url, "--quiet", "--command", statement], check=True, capture_output=True)


def test_the_walk_was_a_walk(walk: Walk) -> None:
    """Without this, a server that refuses everything would pass what follows."""
    statuses = {heard.status for heard in walk.heard}
    assert {200, 201, 303, 400, 401, 403, 404, 500} <= statuses
    assert walk.hub.credentials == {f"Bearer {walk.canaries.nowhere['hub token']}"}
    log = walk.server.log()
    assert " DEBUG " in log and "Traceback" in log and "a fault of ours" in log
    seen = [heard for heard in walk.heard if walk.canaries.in_private(heard.text)]
    assert {heard.by for heard in seen} == {"acme"}, "whose it is may see it, nobody else"
    once = [heard for heard in walk.heard if walk.canaries.in_secret(heard.text)]
    assert {heard.route for heard in once} == SHOWN_ONCE and len(once) == 4


def test_no_answer_has_a_secret(walk: Walk) -> None:
    for heard in walk.heard:
        if heard.route not in SHOWN_ONCE:
            assert walk.canaries.in_secret(heard.text) == [], (heard.by, heard.route)
        if heard.by != "acme":
            assert walk.canaries.in_private(heard.text) == [], (heard.by, heard.route)


def leaks(walk: Walk) -> list[tuple[list[str], str]]:
    """Lines of the log, with the names of the canaries in them."""
    lines = walk.server.log().splitlines()
    named = [(walk.canaries.in_secret(line) + walk.canaries.in_private(line), line) for line in lines]
    return [(names, line) for names, line in named if names]


def test_no_line_of_the_log_has_a_secret_or_a_text(walk: Walk) -> None:
    assert leaks(walk) == []


def test_no_row_has_a_secret(walk: Walk, database: str) -> None:
    dump = [find_program("pg_dump"), "--inserts", f"--dbname={database}"]
    rows = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
    assert "INSERT INTO public.api_keys" in rows and walk.canaries.private["system prompt"] in rows
    assert walk.canaries.in_secret(rows) == []
    assert {"prompt", "another system prompt"}.isdisjoint(walk.canaries.in_private(rows))


def test_no_process_is_started_with_a_secret(walk: Walk) -> None:
    processes = walk.server.processes()
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in processes]
    assert any("loraplex.engine.ipc.process" in command for command in commands)
    for command in commands:
        assert walk.canaries.in_secret(command) == []


def test_no_file_has_a_secret(walk: Walk, folder: Path) -> None:
    """But the one that is for secrets, which is closed to all others."""
    kept = walk.server.data_dir / "credentials.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    found = [path for root in (walk.server.data_dir, folder / "tmp") for path in root.rglob("*")]
    files = [path for path in found if path.is_file() and path != kept]
    assert any("artifacts" in path.parts for path in files)
    for path in files:
        assert walk.canaries.in_secret(path.read_bytes().decode("latin-1")) == [], path


WORDS = (
    ("config",),
    ("config", "--json"),
    ("doctor",),
    ("keys", "list", "--json"),
    ("keys", "list", "--tenant", "acme"),
    ("users", "list", "--json"),
    ("tenants", "list", "--json"),
    ("adapters", "list", "--json"),
    ("usage", "--json"),
    ("audit", "list", "--json"),
    ("audit", "export"),
    ("audit", "export", "--format", "jsonl"),
    ("audit", "verify", "--json"),
    ("db", "upgrade"),
)


def test_no_word_of_the_command_line_tells_a_secret(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor where the database does not answer. The log of a word goes to its standard error."""
    for name in [name for name in os.environ if name.startswith("LORAPLEX_")]:
        monkeypatch.delenv(name)
    for name, value in environment(walk.server.settings).items():
        monkeypatch.setenv(name, value)
    run: Run = typed(monkeypatch, capsys)
    handlers = list(logging.getLogger().handlers)
    for words in WORDS:
        code, out, err = run(*words)
        assert code in (0, 1) and out, (words, err)
        assert walk.canaries.in_secret(out + err) + walk.canaries.in_private(out + err) == [], words
    nobody = str(make_url(str(walk.server.settings["database_url"])).set(port=1).render_as_string(hide_password=False))
    monkeypatch.setenv("LORAPLEX_DATABASE_URL", nobody)
    for words in (("keys", "list"), ("doctor",), ("config", "--json")):
        _, out, err = run(*words)
        assert walk.canaries.in_secret(out + err) == [], words
    logging.getLogger().handlers[:] = handlers


def test_the_server_goes_nowhere_but_to_its_database(walk: Walk, database: str, folder: Path) -> None:
    """And to the hub, where the operator has it fetch; the engine's process goes nowhere at all."""
    address = make_url(database)
    assert address.host is not None and address.port is not None
    seen = attempts(folder)
    programs = {attempt.program for attempt in seen if attempt.event == "started"}
    assert any("loraplex.engine.ipc.process" in program for program in programs) and len(programs) > 1
    went = {attempt for attempt in seen if attempt.event != "started"}
    places = {"database": (address.host, address.port), "where it listens": ("127.0.0.1", walk.server.port)}
    assert {attempt.where for attempt in went} <= set(map(str, places.values()))
    assert not [attempt for attempt in went if "loraplex.engine" in attempt.program]
    engine = walk.server.engine_pid()
    now = {pid: connections_of(pid, walk.server.port) for pid in walk.server.processes()}
    assert now.pop(engine) == set()
    assert set.union(*now.values()) == {places["database"]}


def test_a_database_that_goes_away_takes_no_secret_along(walk: Walk, database: str) -> None:
    """What needs it says so; who is known goes on; the log has no address with its password in it. The last test."""
    folder = subprocess.run(
        [find_program("psql"), database, "-Atc", "SHOW data_directory"], check=True, capture_output=True, text=True
    ).stdout.strip()
    os.kill(int((Path(folder) / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
    heard = len(walk.heard)
    acme = walk.with_key("acme", walk.canaries.nowhere["key of acme"])
    deadline = time.monotonic() + 30
    while acme.get("/api/v1/users").status_code != 503:
        assert time.monotonic() < deadline
    for path in ("/api/v1/keys", "/api/v1/usage", "/api/v1/audit", "/users", "/adapters/support"):
        assert acme.get(path, headers={"accept": "application/json"}).status_code in (200, 503), path
    assert (
        acme.post("/api/v1/users", json={"name": "eve", "password": "k7Qv-horse", "role": "viewer"}).status_code == 503
    )
    assert acme.post(COMPLETIONS, json=greedy("support", "a", 2)).status_code == 200
    assert [(one.route, one.text) for one in walk.heard[heard:] if one.status == 500] == []
    for one in walk.heard[heard:]:
        assert walk.canaries.in_secret(one.text) == [], one.route
    assert leaks(walk) == []
