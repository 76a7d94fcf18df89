"""SQL in whatever a stranger or a tenant may send: it is text everywhere, and opens, changes and breaks nothing."""

import hashlib
from collections.abc import Iterable

import httpx
import pytest
from sqlalchemy import func, select

from loraplex.registry.database.tables import Table
from loraplex.web.state import State

from .conftest import KEY
from .test_access import MATRIX, OTHERWISE_TESTED, key

NAMES = ("name", "reference", "alias", "filename", "prefix", "user", "number", "file_id", "batch_id", "response_id")
CORPUS = (
    "' OR '1'='1",
    "' OR 1=1 --",
    '" OR ""="',
    "') OR ('1'='1",
    "admin'--",
    "admin'/*",
    "x' UNION SELECT prefix, hash FROM api_keys --",
    "'; DROP TABLE api_keys; --",
    "'; UPDATE users SET role = 'admin'; --",
    "1; DELETE FROM audit_entries",
    "' AND (SELECT COUNT(*) FROM users) > 0 --",
    "'||(SELECT hash FROM api_keys LIMIT 1)||'",
    "' OR pg_sleep(5) --",
    "'; SELECT pg_sleep(5); --",
    "1' AND randomblob(1000000000) --",
    "%' OR name LIKE '%",
    "_%",
    "\\' OR 1=1 --",
    "' OR 'x' IN ('x",
    "0x27204f5220313d31",
    "%27%20OR%201%3D1",
    "' GROUP BY 1 HAVING 1=1 --",
    "' ORDER BY 100 --",
    "{{7*7}}' OR '1",
)
PREFIX = f"x{hashlib.sha256(KEY.encode()).hexdigest()[:11]}"
"""Under which the first key is found."""


def rows(state: State) -> dict[str, int]:
    """How many there are of each kind, but for the marks of servers that run."""
    with state.registry.database.read() as session:
        return {
            name: session.scalar(select(func.count()).select_from(table)) or 0
            for name, table in Table.metadata.tables.items()
            if name not in ("usage_writers", "certifiers")
        }


def of_keys(text: str) -> Iterable[str]:
    """Alone, behind a real prefix, and behind a real key."""
    return text, f"lp-{PREFIX}_{text}", f"{KEY}{text}", f"lp-{text}_x"


async def test_keys_and_cookies(client: httpx.AsyncClient, state: State) -> None:
    before = rows(state)
    assert (await client.get("/v1/models")).status_code == 200, "the key to which the texts are added is a good one"
    del client.headers["authorization"]
    for text in CORPUS:
        for token in of_keys(text):
            answer = await client.get("/api/v1/keys", headers={"authorization": f"Bearer {token}"})
            assert answer.status_code == 401, token
        answer = await client.get("/api/v1/keys", headers={"cookie": f"loraplex_session={text.replace(';', '%3B')}"})
        assert answer.status_code == 401, text
    assert rows(state) == before


async def test_logins(client: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "loraplex.web.access.login_throttle.LoginThrottle.begin", lambda *_: 0.0
    )  # none of these is slowed down
    before = rows(state)
    del client.headers["authorization"]
    for text in CORPUS:
        for user, password in ((text, "x"), (f"admin{text}", text), ("admin", text), (f"default/{text}", text)):
            form = {"user": user, "password": password}
            answer = await client.post("/login", data=form, headers={"origin": "http://test"})
            assert (answer.status_code, "set-cookie" in answer.headers) == (401, False), (user, password)
    noted = {"audit": before["audit"]}  # failed logins are, in the words of the log alone
    assert rows(state) | noted == before


QUERIES = ("tenant", "search", "state", "sort", "actor", "action", "subject", "from", "to", "before", "limit", "id")


async def test_ids_and_filters_of_every_route(client: httpx.AsyncClient, state: State) -> None:
    """Asked by an administrator, so that each text gets to its statement."""
    client.headers.update(key(state, "admin") | {"accept": "text/html"})
    paths = [route.split(" ")[1] for route in MATRIX if route.startswith("GET ") and route not in OTHERWISE_TESTED]
    before = rows(state)
    for number, text in enumerate(CORPUS):
        for path in paths[number % 3 :: 3]:
            names = dict.fromkeys(NAMES, text)
            url = httpx.URL("http://test").copy_with(
                path=path.replace(":path", "").format_map(names | {"tenant": text})
            )
            found = await client.get(url, params=dict.fromkeys(QUERIES, text) if "{" not in path else None)
            assert found.status_code < 500 or path == "/ready", (path, text)
            assert found.status_code != 200 or "{" not in path, "there is nothing of that name"
    assert rows(state) == before
