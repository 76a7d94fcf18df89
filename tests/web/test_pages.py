"""The dashboard's pages as plain HTTP: who gets what, forms, hostile texts."""

import asyncio
import json
import shutil
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio
from bs4 import BeautifulSoup

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.admin.cache import cache
from loraplex.web.admin.overview import live
from loraplex.web.admin.words import engine_words
from loraplex.web.management.registration import add_from_folder
from loraplex.web.state import State, open_state

from .conftest import ADMIN_PASSWORD, make_settings
from .fake_engine import FakeEngine
from .test_access import log_in
from .test_adapters_api import put

PAGES = (
    *("/", "/adapters", "/adapters/sql", "/upload", "/cache", "/playground", "/requests", "/system"),
    *(
        "/batches",
        "/usage",
        "/keys",
        "/users",
        "/users/admin",
        "/tenants",
        "/tenants/default",
        "/audit",
        "/audit/1",
        "/account",
    ),
)
WITH_PARTS = (
    *("/adapters", "/cache", "/playground", "/requests", "/batches"),
    *("/usage", "/keys", "/users", "/tenants", "/audit"),
)
ACTIONS = ("enable", "disable", "pin", "unpin", "load", "evict", "certify", "aliases", "delete", "check", "versions")
POSTS = (
    *(f"/adapters/sql/{action}" for action in ACTIONS),
    *(
        "/adapters/sql@1/disable",
        "/adapters/sql@1/current",
        "/adapters/sql/profile",
        "/adapters/sql@1/profile/preview",
        "/adapters/sql/aliases/prod/weights",
        "/cache/sql/pin",
        "/cache/sql@1/load",
        "/upload/fetch",
        "/certify",
        *("/keys", "/keys/0123456789ab", "/keys/0123456789ab/revoke"),
        "/account/password",
        *("/users", "/users/admin/role", "/users/admin/password", "/users/admin/remove"),
        *("/tenants", "/tenants/default", "/tenants/default/disable"),
        "/batches/batch_none/cancel",
        "/logout",
    ),
)
Headers = dict[str, str]
HTML = {"accept": "text/html,application/xhtml+xml"}
HTMX = {"accept": "text/html", "hx-request": "true"}
ORIGIN = {"origin": "http://test"}
XSS = '"><img src=x onerror=alert(1)><script>alert(1)</script>'


@pytest.fixture(scope="module")
def first_data(
    first_data: Path, checkpoint: Path, adapter_folders: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """With an adapter, checked and registered once for all pages."""
    folder = Path(shutil.copytree(first_data, tmp_path_factory.mktemp("with-sql") / "data"))
    state = open_state(make_settings(folder, checkpoint), checkpoint, FakeEngine(Tokenizer(checkpoint)))
    add_from_folder(state.registry, state.base, "sql", adapter_folders[0], actor="cli")
    state.registry.close()
    return folder


@pytest_asyncio.fixture
async def login(state: State) -> tuple[Headers, str]:
    """The cookie's header and the CSRF token."""
    return await log_in(state)


@pytest.fixture
def person(client: httpx.AsyncClient, login: tuple[Headers, str]) -> httpx.AsyncClient:
    """A logged-in browser; sends no token by itself."""
    del client.headers["authorization"]
    client.headers.update(login[0] | HTML)
    return client


@pytest.fixture
def trusted(login: tuple[Headers, str]) -> Headers:
    """What the dashboard's own scripts send with a change."""
    return {**ORIGIN, "x-csrf-token": login[1]}


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_is_whole_and_has_nothing_inline(person: httpx.AsyncClient, trusted: Headers, path: str) -> None:
    answer = await person.get(path)
    assert answer.status_code == 200
    soup = BeautifulSoup(answer.text, "html.parser")
    assert len(soup.find_all("h1")) == 1
    assert not soup.find_all("style")
    assert not soup.find_all(style=True)
    assert all(str(script.get("src")).startswith("/static/") for script in soup.find_all("script"))
    assert not [name for tag in soup.find_all() for name in tag.attrs if name.startswith("on")]
    ids = [tag["id"] for tag in soup.find_all(id=True)]
    assert len(ids) == len(set(ids))
    for form in soup.find_all("form", method="post"):
        assert [field["value"] for field in form.select("[name=csrf_token]")] == [trusted["x-csrf-token"]]
    for control in soup.select("input:not([type=hidden]), textarea"):
        assert soup.find("label", attrs={"for": str(control.get("id"))}) or control.find_parent("label"), control


@pytest.mark.parametrize("path", PAGES)
async def test_static_files_of_a_page_exist(person: httpx.AsyncClient, path: str) -> None:
    soup = BeautifulSoup((await person.get(path)).text, "html.parser")
    addresses = {tag.get("src") or tag.get("href") for tag in soup.select("script[src], link[href], img[src]")}
    for address in addresses:
        assert (await person.get(str(address))).status_code == 200, address


@pytest.mark.parametrize("path", [path for path in PAGES if path not in WITH_PARTS])
async def test_pages_without_parts_are_whole_for_htmx_too(person: httpx.AsyncClient, path: str) -> None:
    soup = BeautifulSoup((await person.get(path, headers=HTMX)).text, "html.parser")
    assert len(soup.select("html main h1")) == 1


@pytest.mark.parametrize(("path", "status"), [*((path, 200) for path in PAGES), ("/login", 200), ("/adapters/no", 404)])
async def test_pages_run_nothing_inline_and_are_not_kept(person: httpx.AsyncClient, path: str, status: int) -> None:
    answer = await person.get(path)
    assert (answer.status_code, answer.headers["cache-control"]) == (status, "no-store")
    policy = dict(part.split(maxsplit=1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'self'"
    assert policy.keys() & {"script-src", "style-src"} == set()
    assert {policy[name] for name in ("object-src", "base-uri", "frame-ancestors")} == {"'none'"}
    assert not [words for words in policy.values() if "unsafe" in words]
    assert answer.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/nowhere", 404, "no page at /nowhere. Check the address"),
        ("GET", "/static/none.css", 404, "no page at /static/none.css"),
        ("GET", "/logout", 405, "/logout cannot be opened directly. Go back and use the form"),
        ("POST", "/system", 405, "/system cannot be opened directly"),
        ("GET", "/cache", 500, "the server's log has the cause"),
    ],
)
async def test_what_no_page_answers_is_a_page_for_browsers_and_json_for_programs(
    person: httpx.AsyncClient,
    trusted: Headers,
    method: str,
    path: str,
    status: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "cache_view", None)  # a fault of ours
    answer = await person.request(method, path, headers=trusted)
    soup = BeautifulSoup(answer.text, "html.parser")
    assert (answer.status_code, answer.headers["cache-control"]) == (status, "no-store")
    assert words in soup.select_one("main .card").text  # type: ignore[union-attr]
    assert soup.select("nav a") and not soup.select("[href$='/login']")
    assert status != 500 or answer.headers["x-request-id"] in answer.text
    program = await person.request(method, path, headers={"accept": "application/json"})
    assert program.status_code == status and program.json()["error"]["message"]


async def test_only_the_operator_is_offered_what_only_the_operator_may(
    client: httpx.AsyncClient, state: State, tmp_path: Path
) -> None:
    state.settings = state.settings.model_copy(update={"adapter_hub": True, "adapter_folders": (tmp_path,)})
    state.registry.tenants.create("acme", actor="system")
    shown, may_certify = {}, {}
    for tenant in ("default", "acme"):
        token = state.registry.keys.create("admin", ["admin"], actor="system", tenant=tenant).token
        state.registry.snapshots.refresh()
        text = (await client.get("/upload", headers=HTML | {"authorization": f"Bearer {token}"})).text
        soup = BeautifulSoup(text, "html.parser")
        overview = (await client.get("/", headers=HTML | {"authorization": f"Bearer {token}"})).text
        may_certify[tenant] = "Press Certify" in overview, "The operator of this server can start it" in overview
        shown[tenant] = [choice["value"] for choice in soup.select("[name=from]")], str(tmp_path) in text
    assert shown == {"default": (["files", "hub", "folder"], True), "acme": (["files"], False)}
    assert may_certify == {"default": (True, False), "acme": (False, True)}, "the base's certificate"


async def test_what_is_turned_away_at_the_door_is_a_page_for_browsers_too(
    person: httpx.AsyncClient, trusted: Headers, state: State
) -> None:
    async def shown(answer: httpx.Response, status: int, words: str) -> None:
        card = BeautifulSoup(answer.text, "html.parser").select_one("main .card")
        assert answer.status_code == status and card is not None and words in card.text, answer.text
        assert [link["href"] for link in card.select("a")] == ["/"], "a login would change nothing"

    large = {"content": b"x" * (2 << 20), "headers": trusted}
    await shown(await person.post("/keys", **large), 413, "larger than the 1,048,576 bytes")
    for path, accept in (("/keys", "application/json"), ("/v1/completions", "text/html")):
        answer = await person.post(path, content=b"x" * (2 << 20), headers=trusted | {"accept": accept})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    state.stopping.set()
    answer = await person.get("/adapters")
    await shown(answer, 503, "The server is stopping")
    assert answer.headers["retry-after"] and answer.headers["connection"] == "close"
    program = await person.get("/adapters", headers={"accept": "*/*"})
    assert (program.status_code, program.json()["error"]["code"]) == (503, "unavailable")
    state.stopping.clear()


async def test_unknown_addresses_for_strangers_and_below_the_apis(client: httpx.AsyncClient) -> None:
    del client.headers["authorization"]
    answer = await client.get("/nowhere", headers=HTML | {"cookie": "loraplex_session=old"})
    soup = BeautifulSoup(answer.text, "html.parser")
    assert answer.status_code == 404 and not soup.select("nav")
    assert [link["href"] for link in soup.select("main a")] == ["/login"]
    for path in ("/v1/nowhere", "/api/v1/nowhere"):
        error = (await client.get(path, headers=HTML)).json()["error"]
        assert error["code"] == "unknown_url"
        assert ("/api/v1/openapi.json" in error["message"]) == path.startswith("/api/")
    named = (await client.get(f"/{quote(XSS)}", headers=HTML)).text
    assert "<img src=x" not in named and "<script>alert" not in named


async def test_htmx_gets_the_table_alone(person: httpx.AsyncClient) -> None:
    whole, part = await person.get("/adapters"), await person.get("/adapters", headers=HTMX)
    assert "<html" in whole.text
    assert "<html" not in part.text
    assert 'id="adapter-rows"' in part.text
    for start in ("nonsense", "-1", "9" * 5000, "99"):
        assert (await person.get("/adapters", params={"start": start})).status_code == 200, start


@pytest.mark.parametrize("path", PAGES)
async def test_strangers_are_sent_to_the_login(client: httpx.AsyncClient, path: str) -> None:
    del client.headers["authorization"]
    browser = await client.get(path, headers=HTML)
    assert (browser.status_code, browser.headers["location"]) == (303, f"/login?next={path}")
    part = await client.get(path, headers=HTMX)
    assert (part.status_code, part.headers["hx-redirect"], part.text) == (401, "/login", "")
    program = await client.get(path)
    assert (program.status_code, program.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("path", [*PAGES, "/dashboard/state", "/dashboard/live"])
async def test_an_inference_key_opens_no_page(client: httpx.AsyncClient, path: str) -> None:
    for headers in (HTML, HTMX):
        assert (await client.get(path, headers=headers)).status_code == 403, headers
    program = await client.get(path)
    assert program.status_code == 403 or (path == "/" and program.text.startswith("loraplex is running"))


@pytest.mark.parametrize("path", POSTS)
async def test_posts_need_origin_and_token(
    person: httpx.AsyncClient, trusted: Headers, state: State, path: str
) -> None:
    token = trusted["x-csrf-token"]
    body = {"confirm": "sql"}
    for headers, fields in (
        ({}, body | {"csrf_token": token}),
        (ORIGIN, body),
        (ORIGIN, body | {"csrf_token": "x"}),
        ({"origin": "http://evil.example"}, body | {"csrf_token": token}),
        ({"origin": "null", "x-csrf-token": token}, body),
    ):
        answer = await person.post(path, data=fields, headers=headers)
        assert answer.status_code == 403, (headers, fields)
        assert "Not allowed" in answer.text
    assert await asyncio.to_thread(state.registry.adapters.get, "sql")


async def test_the_login_itself_checks_the_origin(client: httpx.AsyncClient) -> None:
    del client.headers["authorization"]
    fields = {"user": "admin", "password": ADMIN_PASSWORD}
    for origin in ({}, {"origin": "http://evil.example"}):
        answer = await client.post("/login", data=fields, headers=origin)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    cookie = (await client.post("/login", data=fields, headers=ORIGIN)).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "/\\evil.example", "/\t/evil.example", "https://evil.example", "javascript:x", "", "/\n/e"],
)
async def test_the_login_never_leads_away(client: httpx.AsyncClient, target: str) -> None:
    fields = {"user": "admin", "password": ADMIN_PASSWORD, "next": target}
    answer = await client.post("/login", data=fields, headers=ORIGIN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_refusals_are_pages_for_people_and_json_for_programs(person: httpx.AsyncClient, trusted: Headers) -> None:
    for path, status in (("/adapters/unknown", 404), ("/adapters/%00", 400), ("/adapters/Not-A-Name", 400)):
        answer = await person.get(path)
        assert answer.status_code == status, path
        assert "<h1>" in answer.text
        assert "error" in (await person.get(path, headers={"accept": "application/json"})).json()
    assert "There is no adapter" in (await person.get("/adapters/unknown")).text
    answer = await person.post("/adapters/sql/explode", headers=trusted)
    assert answer.status_code == 404
    assert "There is no action" in answer.text


async def test_hostile_texts_stay_texts(
    person: httpx.AsyncClient, trusted: Headers, adapter_folders: list[Path]
) -> None:
    config = json.loads((adapter_folders[1] / CONFIG_FILE).read_text()) | {"base_model_name_or_path": XSS}
    files = {CONFIG_FILE: json.dumps(config).encode(), WEIGHTS_FILE: (adapter_folders[1] / WEIGHTS_FILE).read_bytes()}
    digests = {}
    for file, data in files.items():
        answer = await put(person, "hostile", file, data, **trusted, accept="*/*")
        digests[file] = answer.json()["sha256"]
    body = {"config_sha256": digests[CONFIG_FILE], "weights_sha256": digests[WEIGHTS_FILE]}
    accepted = await person.post("/adapters/hostile/versions", data=body, headers=trusted)
    assert "is registered" in accepted.text
    pages = [accepted, await person.get("/adapters/hostile"), await person.get("/adapters", params={"search": XSS})]
    pages += [await person.get("/playground", params={"prompt": XSS, "model": XSS})]
    pages += [await person.get("/adapters/" + quote(XSS.partition("<script>")[0]))]
    pages += [await person.get("/upload", params={"name": XSS}), await person.get("/login", params={"next": XSS})]
    for page in pages:
        assert "<img src=x" not in page.text
        assert "<script>alert" not in page.text
    assert "&lt;img src=x" in pages[1].text


async def test_hostile_target_names_stay_texts(
    person: httpx.AsyncClient, trusted: Headers, adapter_folders: list[Path]
) -> None:
    config = json.loads((adapter_folders[0] / CONFIG_FILE).read_text()) | {"target_modules": [XSS], "peft_type": XSS}
    data = json.dumps(config).encode()
    config_sha256 = (await put(person, "x", CONFIG_FILE, data, **trusted, accept="*/*")).json()["sha256"]
    weights = (adapter_folders[0] / WEIGHTS_FILE).read_bytes()
    weights_sha256 = (await put(person, "x", WEIGHTS_FILE, weights, **trusted, accept="*/*")).json()["sha256"]
    body = {"config_sha256": config_sha256, "weights_sha256": weights_sha256}
    refused = await person.post("/adapters/x/versions", data=body, headers=trusted)
    assert "was not registered" in refused.text
    assert "<img src=x" not in refused.text


async def test_the_report_names_what_has_to_be_sent(person: httpx.AsyncClient, trusted: Headers) -> None:
    body = {"config_sha256": "0" * 64, "weights_sha256": "1" * 64}
    answer = await person.post("/adapters/new/versions", data=body, headers=trusted)
    assert (answer.status_code, answer.headers["x-missing-files"]) == (202, f"{CONFIG_FILE},{WEIGHTS_FILE}")
    for wrong in ({}, {"config_sha256": "../../etc", "weights_sha256": "x"}):
        answer = await person.post("/adapters/new/versions", data=wrong, headers=trusted)
        assert "was not registered" in answer.text
    assert (await person.get("/upload")).status_code == 200


async def test_the_live_stream_is_events_of_the_same_document(person: httpx.AsyncClient, state: State) -> None:
    document = (await person.get("/dashboard/state", headers={"accept": "application/json"})).json()
    assert document["engine"]["words"] == "Ready · CPU"
    asyncio.get_running_loop().call_later(0.2, state.stopping.set)
    answer = await person.get("/dashboard/live")
    assert answer.headers["content-type"].startswith("text/event-stream")
    first = answer.text.split("\n\n")[0]
    assert json.loads(first.removeprefix("data: ")).keys() == document.keys()


@pytest.mark.parametrize(("path", "field"), [("/audit?before=abc", "before"), ("/audit?everyone=perhaps", "everyone")])
async def test_a_query_that_means_nothing_is_refused_on_a_page(
    person: httpx.AsyncClient, path: str, field: str
) -> None:
    refused = await person.get(path, headers=HTML)
    assert refused.status_code == 400 and refused.headers["content-type"].startswith("text/html")
    page = BeautifulSoup(refused.text, "html.parser")
    assert page.select_one("h1") is not None and "Something went wrong" in refused.text and f"{field}: " in refused.text
    assert page.select_one("nav a") is not None, "the menu leads on"
    for_programs = await person.get(path, headers={"accept": "application/json"})
    assert for_programs.json()["error"]["param"] == field


@pytest.mark.parametrize(("now", "wake"), [(7.0, 8.0), (7.4, 8.0), (7.6, 9.0), (7.999, 9.0)])
def test_streams_wake_together_so_that_one_document_serves_them(
    now: float, wake: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert now + live.seconds_to_next() == pytest.approx(wake)


async def test_a_lost_engine_leaves_every_page_standing(
    person: httpx.AsyncClient, trusted: Headers, engine: FakeEngine
) -> None:
    engine.crash()
    for path in PAGES:
        answer = await person.get(path)
        assert answer.status_code == 200
        assert "Restarting" in answer.text
    document = (await person.get("/dashboard/state")).json()
    assert document["residency"]["states"] is None
    answer = await person.post("/adapters/sql/load", headers=trusted)
    assert answer.status_code == 503 and answer.headers["retry-after"]
    assert "Temporarily unavailable" in answer.text


async def test_a_failed_start_is_said_and_to_the_operator_why(
    person: httpx.AsyncClient, client: httpx.AsyncClient, state: State
) -> None:
    state.start_error = "the weights are cut off"
    assert "The engine could not start. Why: the weights are cut off" in (await person.get("/")).text
    state.registry.users.create("bob", ADMIN_PASSWORD, "viewer", actor="system")
    headers, _ = await log_in(state, "bob")
    page = (await client.get("/", headers=HTML | headers)).text
    assert "The engine could not start. Tell the operator." in page
    client.headers.clear()
    everybody = await client.get("/ready")
    assert everybody.status_code == 503 and "the engine could not start" in everybody.json()["reasons"][0]
    assert "weights" not in page + everybody.text
    assert engine_words(state) == ("Failed to start", "bad")
