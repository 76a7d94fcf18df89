"""What browsers, probes and tools ask for beside the API: CORS, HEAD, /ping, /load, /tokenizer_info, and /."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from pydantic import ValidationError

from loraplex.web.settings.settings import Settings
from loraplex.web.state import State

from .conftest import served
from .test_streams import http, server

__all__ = ["http", "server"]
SITE, OTHER = "https://chat.example.com", "https://elsewhere.example.com"
CHAT = "/v1/chat/completions"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}


@pytest_asyncio.fixture
async def open_client(state: State) -> AsyncIterator[httpx.AsyncClient]:
    state.settings = state.settings.model_copy(update={"allowed_origins": (SITE,)})
    async with served(state) as client:
        yield client


async def test_pages_of_an_allowed_site_may_ask(open_client: httpx.AsyncClient) -> None:
    asked = await open_client.options(CHAT, headers={"origin": SITE, **PREFLIGHT})
    assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == SITE
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert "authorization" in asked.headers["access-control-allow-headers"]
    for answer in (
        await open_client.post(CHAT, json=BODY, headers={"origin": SITE}),
        await open_client.post(CHAT, json={**BODY, "stream": True}, headers={"origin": SITE}),
        await open_client.post(CHAT, json={}, headers={"origin": SITE}),
        await open_client.post(CHAT, json=BODY, headers={"origin": SITE, "authorization": "Bearer no"}),
        await open_client.post(CHAT, content=b"x" * (2 << 20), headers={"origin": SITE}),
    ):
        assert answer.headers["access-control-allow-origin"] == SITE, answer.text
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers


async def test_pages_of_other_sites_may_not(open_client: httpx.AsyncClient) -> None:
    asked = await open_client.options(CHAT, headers={"origin": OTHER, **PREFLIGHT})
    assert asked.status_code == 400 and "access-control-allow-origin" not in asked.headers
    answer = await open_client.post(CHAT, json=BODY, headers={"origin": OTHER})
    assert "access-control-allow-origin" not in answer.headers


async def test_no_site_is_allowed_unless_it_is_named(client: httpx.AsyncClient) -> None:
    answer = await client.post(CHAT, json=BODY, headers={"origin": SITE})
    assert "access-control-allow-origin" not in answer.headers
    assert (await client.options(CHAT, headers={"origin": SITE, **PREFLIGHT})).status_code == 405


@pytest.mark.parametrize(
    ("given", "origins"),
    [
        ("*", ("*",)),
        ('["*"]', ("*",)),
        (f"{SITE}, http://localhost:3000", (SITE, "http://localhost:3000")),
        ("", ()),
    ],
)
def test_origins_are_given_in_two_ways(given: str, origins: tuple[str, ...]) -> None:
    assert Settings(allowed_origins=given).allowed_origins == origins


@pytest.mark.parametrize("given", ["chat.example.com", f"{SITE}/", "ftp://a", "[*", "https://*.example.com", "null"])
def test_what_is_no_origin_is_refused(given: str) -> None:
    with pytest.raises(ValidationError, match=r"origin|JSON"):
        Settings(allowed_origins=given)


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/v1/models", "/openapi.json", "/docs", "/metrics"])
async def test_head_is_get_without_a_body(http: httpx.AsyncClient, path: str) -> None:
    whole, head = await http.get(path), await http.head(path)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers["content-type"] == whole.headers["content-type"] if "content-type" in whole.headers else True


async def test_head_of_what_refuses_and_of_what_never_ends(http: httpx.AsyncClient, state: State) -> None:
    assert (await http.head("/nothing")).status_code == 404
    assert (await http.head(CHAT)).status_code == 405
    assert (await http.head("/v1/models", headers={"authorization": "Bearer no"})).status_code == 401
    key = {"authorization": f"Bearer {state.local_key}"}
    assert (await http.head("/dashboard/live", headers=key, timeout=20)).status_code == 200
    assert (await http.head("/health")).status_code == 200, "the connection is still good"


async def test_ping_and_load(client: httpx.AsyncClient) -> None:
    assert (await client.get("/ping")).status_code == (await client.post("/ping")).status_code == 200
    assert (await client.get("/load")).json() == {"server_load": 0}


async def test_what_clients_that_tokenize_need(client: httpx.AsyncClient, state: State) -> None:
    info = (await client.get("/tokenizer_info")).json()
    assert info["eos_token"] == state.tokenizer.named_tokens["eos_token"] and info["vocab_size"] > 100
    assert state.template is not None and info["chat_template"] == state.template.source
    assert (await client.get("/tokenizer_info", params={"model": "absent"})).status_code == 404


async def test_a_key_for_the_api_hears_where_that_is(client: httpx.AsyncClient) -> None:
    answer = await client.get("/")
    assert answer.status_code == 200 and "The API is under /v1, see /v1/models" in answer.text
    browser = await client.get("/", headers={"accept": "text/html"})
    assert browser.status_code == 403 and "The API is under /v1, see /v1/models" in browser.text
