"""What a page shows leads where whoever looks may go, and nothing is kept from those who may: as every role, with and
without htmx, on a server with something of everything and on an empty one."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from bs4 import BeautifulSoup
from bs4.element import Tag
from starlette.routing import compile_path

from loraplex.web import app as web_app
from loraplex.web.state import State

from .batches.test_batches import begin, lines, prompt
from .conftest import ADMIN_PASSWORD
from .fake_engine import FakeEngine
from .test_access import LOGINS, MATRIX, OPERATE, PUBLIC, add_people, key, log_in
from .test_access import PAGES as PAGE_ROUTES
from .test_adapters_api import add, say
from .test_pages import HTML, HTMX, PAGES

WEB = Path(web_app.__file__).parent
SEEDS = (
    *PAGES,
    "/adapters/sql@1/profile",
    "/adapters/none",
    "/nowhere",
    "/requests?search=none",
    "/usage?adapter=none",
)
ROLES = {**LOGINS, "acme/editor": LOGINS["editor"], "acme/viewer": LOGINS["viewer"]}
TEXTS = frozenset({"placeholder", "value", "title", "content", "data-shortcut"})
"""Attributes that may begin with a slash and lead nowhere."""
BY_SCRIPTS = {
    *("POST /upload/fetch", "POST /adapters/{name}/check", "POST /adapters/{name}/versions"),
    *("GET /login", "POST /login", "GET /dashboard/live", "GET /dashboard/state"),
    "POST /adapters/{name}/undo",
}
"""Of the pages' routes those that stand in no page; the last only in those of who has just changed something."""
OFFERED_APART = "/upload/fetch"
"""The script asks for it where the page offers more than files; `test_pages.py` says to whom it does."""
ADDRESS = re.compile(r"""["`](/(?:[\w./-]|\$\{[^}]*\})+)""")
PATTERNS = [(method, compile_path(path)[0], path) for method, path in (route.split(" ") for route in MATRIX)]
IDS = ("#profile", "#aliases", "#certificate")
ON_THE_SERVER = re.compile(
    r"\bloraplex (?!adapters push )(adapters|audit|bench|calibrate-kv|certify|db|doctor|keys|serve|users|usage)\b"
    r"|LORAPLEX_(?!API_KEY|KEY)|credentials\.json|calibrate-kv|\badapter_\w*memory|the start printed|[Tt]he log "
)
"""What takes a shell on the server, its settings or its log."""
SAYS = "p, dd, table, ul, pre, button, .chart"
"""What is more in a card than its heading."""
Way = tuple[str, str]
"""A method, and an address with its query."""


class Visitor:
    """Looks at the first pages and at all that they lead to."""

    def __init__(self, client: httpx.AsyncClient, headers: dict[str, str], allowed: set[str]) -> None:
        self._client, self.headers = client, headers
        self._operates = OPERATE in allowed
        self.told: set[str] = set()
        """What it reads of the server's shell."""
        self._allowed = allowed | {PUBLIC}
        self.shown: dict[str, set[str]] = {}
        """First page that is there -> the routes that it leads to."""
        self.found: set[str] = set()
        """Routes that any page leads to."""

    def may(self, route: str) -> bool:
        return MATRIX[route] in self._allowed

    async def walk(self) -> None:
        ahead: set[str] = set()
        for seed in SEEDS:
            answer = await self._client.get(seed, headers=self.headers)
            needed = [route for route in routes_at(seed) if route.startswith("GET ")]
            assert (answer.status_code == 403) == any(not self.may(route) for route in needed), seed
            ways = self._ways(seed, answer)
            if answer.status_code == 200:
                self.shown[seed] = {route_of(way) for way in ways}
            ahead |= {address for method, address in ways if method == "GET"}
        await self._go_on(ahead)

    async def _go_on(self, ahead: set[str]) -> None:
        """Ask for each address once, and follow what one answer of each path leads to."""
        asked, followed = set(SEEDS), {urlsplit(seed).path for seed in SEEDS}
        while ahead := ahead - asked:
            address = min(ahead)
            asked.add(address)
            answer = await self._client.get(address, headers=self.headers)
            assert answer.status_code < 400, address
            if urlsplit(address).path not in followed:
                followed.add(urlsplit(address).path)
                ahead |= {place for method, place in self._ways(address, answer) if method == "GET"}

    def _ways(self, address: str, answer: httpx.Response) -> set[Way]:
        self.told |= {found[0] for found in ON_THE_SERVER.finditer(answer.text)}
        assert self._operates or not self.told, f"{address} speaks of what only the operator can do"
        ways = set(ways_of(answer))
        refused = {way for way in ways if not self.may(route_of(way))}
        assert refused == set(), f"{address} leads there"
        self.found |= {route_of(way) for way in ways}
        return ways


def routes_at(address: str) -> list[str]:
    """Of every method; the one that answers is the first of its method."""
    path = unquote(urlsplit(address).path)
    return [f"{method} {template}" for method, pattern, template in PATTERNS if pattern.match(path)]


def route_of(way: Way) -> str:
    found = [route for route in routes_at(way[1]) if route.startswith(f"{way[0]} ")]
    assert found, f"{way} is no route"
    return found[0]


def ways_of(answer: httpx.Response) -> Iterator[Way]:
    """Whatever in the page begins with a slash, but its static files."""
    if not answer.headers["content-type"].startswith("text/html"):
        return
    for tag in BeautifulSoup(answer.text, "html.parser").find_all():
        for name, value in tag.attrs.items():
            address = str(value).partition("#")[0]
            if name == "href":
                assert address[:1] in ("", "/"), f"{tag} is relative"
            if name not in TEXTS and address.startswith("/") and not address.startswith("/static/"):
                yield method_of(tag, name), address


def method_of(tag: Tag, attribute: str) -> str:
    if attribute.startswith("hx-"):
        return {"hx-replace-url": "GET"}.get(attribute, attribute.removeprefix("hx-").upper())
    if attribute == "action":
        return str(tag.get("method", "get")).upper()
    return "POST" if attribute in ("formaction", "data-action") else "GET"


@pytest.fixture
def people(state: State) -> None:
    """Every role in both tenants, and a key in each."""
    add_people(state)
    key(state, "inference", tenant="acme")
    for role in ("editor", "viewer"):
        state.registry.users.create(role, ADMIN_PASSWORD, role, actor="system", tenant="acme")


async def visitor(client: httpx.AsyncClient, state: State, login: str, headers: dict[str, str]) -> Visitor:
    session, _ = await log_in(state, login)
    client.headers.pop("authorization", None)
    return Visitor(client, headers | session, ROLES[login])


async def furnish(client: httpx.AsyncClient, state: State, folders: list[Path]) -> None:
    """The same in both tenants: two versions with a route, a profile, a request, usage, keys, a batch that runs."""
    assert isinstance(state.engine, FakeEngine)
    for tenant in ("default", "acme"):
        client.headers.update(key(state, "admin", tenant=tenant))
        for folder in folders:
            assert (await add(client, "sql", folder)).status_code == 201
        prod = {"version": 1, "weights": {"1": 90, "2": 10}}
        for answer in (
            await client.put("/api/v1/adapters/sql/aliases/prod", json=prod),
            await client.put("/api/v1/adapters/sql/aliases/prod/guard", json={"max_error_rate": 0.02}),
            await client.put("/api/v1/adapters/sql/profile", json={"temperature": 0.3, "stop": ["\n\n"]}),
            await say(client, "sql"),
        ):
            assert answer.status_code < 300, answer.text
        async with asyncio.timeout(60):
            while not (await client.get("/api/v1/usage")).json()["data"]:
                await asyncio.sleep(0.05)
    state.engine.delay = 60
    for tenant in ("default", "acme"):
        client.headers.update(key(state, "admin", tenant=tenant))
        await begin(client, lines([prompt(1)]))


async def compared(client: httpx.AsyncClient, state: State, headers: dict[str, str]) -> set[str]:
    """Every role's pages beside the operator's; the routes that those lead to."""
    visitors = {login: await visitor(client, state, login, headers) for login in ROLES}
    for each in visitors.values():
        await each.walk()
    operator = visitors["admin"]
    assert operator.told, "the operator is told of commands"
    for login, each in visitors.items():
        assert each.found == {route for route in operator.found if each.may(route)}, login
        # Audit rows are numbered within a tenant: the same number is another row.
        for seed in [one for one in each.shown if "/" not in login or not one.startswith("/audit/")]:
            assert each.shown[seed] == {route for route in operator.shown[seed] if each.may(route)}, (login, seed)
    return operator.found


@pytest.mark.parametrize("headers", [HTML, HTMX], ids=["whole", "htmx"])
async def test_pages_lead_where_one_may_go_and_keep_nothing_back(
    client: httpx.AsyncClient,
    state: State,
    engine: FakeEngine,
    adapter_folders: list[Path],
    people: None,
    headers: dict[str, str],
) -> None:
    await furnish(client, state, adapter_folders)
    engine.restarts = 1  # so that the overview points to /system
    found = await compared(client, state, headers)
    assert headers == HTMX or found >= PAGE_ROUTES.keys() - BY_SCRIPTS, "all there is can be found from the first pages"


@pytest.mark.parametrize("headers", [HTML, HTMX], ids=["whole", "htmx"])
async def test_empty_pages_do_so_too(
    client: httpx.AsyncClient, state: State, people: None, headers: dict[str, str]
) -> None:
    found = await compared(client, state, headers)
    assert {"GET /playground", "GET /upload"} <= found


@pytest.mark.parametrize("login", ROLES)
async def test_the_live_document_points_only_where_one_may_go(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, people: None, login: str
) -> None:
    """The overview's script makes links of it; who may not open a page reads the same words."""
    engine.restarts = 1
    other = await visitor(client, state, "admin" if login != "admin" else "viewer", HTML)
    each = await visitor(client, state, login, HTML)
    for one in (other, each):
        [item] = (await client.get("/dashboard/state", headers=one.headers)).json()["attention"]
        assert "restarted 1 time" in item["text"]
        assert item["text"].endswith("The log says why.") == one.may("GET /system")
        assert item["path"] == ("/system" if one.may("GET /system") else "")


@pytest.mark.parametrize("login", ROLES)
async def test_scripts_ask_for_what_everybody_may_who_gets_them(
    client: httpx.AsyncClient, state: State, people: None, login: str
) -> None:
    each, asked = await visitor(client, state, login, HTML), set()
    for seed in PAGES:
        soup = BeautifulSoup((await client.get(seed, headers=each.headers)).text, "html.parser")
        files = {WEB / str(tag["src"]).lstrip("/") for tag in soup.select("script[src*='/js/']")}
        asked |= {address for file in with_imports(files) for address in ADDRESS.findall(file.read_text())}
    known = {address: routes_at(re.sub(r"\$\{[^}]*\}", "x", address)) for address in asked - {OFFERED_APART}}
    assert [address for address, routes in known.items() if routes and not any(map(each.may, routes))] == []
    assert {"/dashboard/live", "/login"} < known.keys()


def with_imports(files: set[Path]) -> set[Path]:
    found: set[Path] = set()
    while files := files - found:
        found |= files
        files = {file.parent / name for file in files for name in re.findall(r'"(\./\w+\.js)"', file.read_text())}
    return found


def test_templates_ask_about_routes_that_there_are() -> None:
    """A mistyped one would be the admins' alone."""
    texts = [file.read_text() for file in (WEB / "templates").rglob("*.html")]
    asked = {route for text in texts for route in re.findall(r'\b(?:may|who)\("([^"]+)"\)', text)}
    assert len(asked) > 5 and asked <= MATRIX.keys()


async def test_a_viewer_reads_what_others_have_in_forms(
    client: httpx.AsyncClient, state: State, adapter_folders: list[Path], people: None
) -> None:
    await furnish(client, state, adapter_folders)
    viewer = await visitor(client, state, "viewer", HTML)
    soup = BeautifulSoup((await client.get("/adapters/sql", headers=viewer.headers)).text, "html.parser")
    profile, routes, certificate = (" ".join(soup.select_one(id).get_text(" ").split()) for id in IDS)  # type: ignore[union-attr]
    assert "Temperature 0.3" in profile and '"\\n\\n"' in profile
    assert "sql@prod 1 stable 90 %" in routes and "2 candidate 10 %" in routes
    assert "Guard for sql@prod : max error rate 2 %; evaluated after 20 requests within 600 s." in routes
    assert "An editor or admin of your tenant can start it" in certificate
    assert soup.select("main form, main input, main textarea, main select") == []
    assert [section for section in soup.select("main section") if not section.select(SAYS)] == []
    other = (await client.get("/adapters/sql@1/profile", headers=viewer.headers | HTMX)).text
    assert "No defaults set." in other
