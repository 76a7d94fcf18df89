"""no_api_key: the models answer every program of this machine; pages and other machines are refused as always."""

import httpx
import pytest

from loraplex.web.app import create_app
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State

from .conftest import KEY, served

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
OPEN_PATHS = ("/v1/models", "/v1/models/tiny")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"no_api_key": True})


def from_address(state: State, address: str, base: str = "http://127.0.0.1:8000") -> httpx.AsyncClient:
    app = create_app(state)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(address, 40000))
    return httpx.AsyncClient(transport=transport, base_url=base)


@pytest.mark.parametrize("sent", [None, "EMPTY", "sk-anything", "lp-aaaaaaaaaaaa_unknown"])
async def test_models_answer_without_a_key_and_with_any(state: State, sent: str | None) -> None:
    headers = {} if sent is None else {"authorization": f"Bearer {sent}"}
    async with served(state), from_address(state, "127.0.0.1") as anyone:
        answered = await anyone.post("/v1/chat/completions", json=ASK, headers=headers)
        assert answered.status_code == 200 and answered.json()["choices"][0]["message"]["content"]
        assert [(await anyone.get(path, headers=headers)).status_code for path in OPEN_PATHS] == [200, 200]


async def test_a_key_still_says_who_asks(state: State) -> None:
    async with served(state), from_address(state, "127.0.0.1") as anyone:
        await anyone.post("/v1/chat/completions", json=ASK, headers={"authorization": f"Bearer {KEY}"})
        await anyone.post("/v1/chat/completions", json=ASK)
    actors = [request.actor for request in state.metrics.log.of(None)]
    assert sorted(actor.partition(":")[0] for actor in actors) == ["key", "user"] and "user:anyone" in actors


@pytest.mark.parametrize(
    ("address", "base", "headers"),
    [
        ("192.168.1.7", "http://127.0.0.1:8000", {}),
        ("127.0.0.1", "http://rebound.example:8000", {}),
        ("127.0.0.1", "http://127.0.0.1:8000", {"origin": "https://elsewhere.example"}),
        ("127.0.0.1", "http://127.0.0.1:8000", {"origin": "null"}),
    ],
)
async def test_who_comes_from_elsewhere_needs_a_key(
    state: State, address: str, base: str, headers: dict[str, str]
) -> None:
    async with served(state), from_address(state, address, base) as stranger:
        assert (await stranger.post("/v1/chat/completions", json=ASK, headers=headers)).status_code == 401
        with_key = headers | {"authorization": f"Bearer {KEY}"}
        assert (await stranger.post("/v1/chat/completions", json=ASK, headers=with_key)).status_code == 200


@pytest.mark.parametrize("method", ["HEAD", "GET"])
async def test_programs_hear_at_the_front_door_that_the_server_runs(state: State, method: str) -> None:
    """The ollama command gives up where its `HEAD /` is refused."""
    async with served(state), from_address(state, "127.0.0.1") as anyone, from_address(state, "192.168.1.7") as far:
        for headers in ({}, {"accept": "*/*"}, {"authorization": "Bearer ollama"}):
            answer = await anyone.request(method, "/", headers=headers)
            assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
            assert answer.text.startswith("loraplex is running" if method == "GET" else "")
        browser = await anyone.request(method, "/", headers={"accept": "text/html,*/*"})
        assert browser.status_code == 303 and browser.headers["location"].startswith("/login")
        part = await anyone.request(method, "/", headers={"hx-request": "true"})
        assert part.status_code == 401 and part.headers["hx-redirect"] == "/login"
        assert (await far.request(method, "/")).status_code == 401
        elsewhere = {"origin": "https://elsewhere.example"}
        assert (await anyone.request(method, "/", headers=elsewhere)).status_code == 401


@pytest.mark.parametrize("path", ["/api/v1/adapters", "/api/v1/me", "/api/v1/keys", "/adapters", "/usage"])
async def test_all_else_asks_for_a_login(state: State, path: str) -> None:
    async with served(state), from_address(state, "127.0.0.1") as anyone:
        assert (await anyone.get(path, headers={"accept": "application/json"})).status_code in (401, 303)
