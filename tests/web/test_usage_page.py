"""The usage page: sums, charts and files of the ledger; what a spreadsheet must not compute."""

import csv
import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.registry.access.tenants import tenant_id
from loraplex.registry.usage.ledger import COUNTS, _book
from loraplex.web.audit.csv_lines import csv_lines
from loraplex.web.state import State

from .test_access import log_in
from .test_adapters_api import Headers, add
from .test_pages import HTMX, first_data, login, person, trusted

__all__ = ["first_data", "login", "person", "trusted"]

TODAY = datetime.now(UTC).date()
YESTERDAY = TODAY - timedelta(days=1)


@pytest.fixture(autouse=True)
def booked(state: State) -> str:
    """Prefix of the key that used most."""
    prefix = state.registry.keys.create("=billing", ["inference"], actor="system").key.prefix
    state.registry.tenants.create("acme", actor="system")
    with state.registry.database.write() as session:
        ours, theirs = tenant_id(session, "default"), tenant_id(session, "acme")
        row: dict[str, Any] = {"tenant_id": ours, "day": TODAY.isoformat(), "hour": 1, "adapter_name": "sql"}
        sql, base = row | {"adapter_digest": "a" * 64}, row | {"adapter_digest": "", "adapter_name": "tiny"}
        _book(
            session,
            [
                sql
                | {"actor": f"key:{prefix}", "requests": 5, "errors": 1, "prompt_tokens": 1000, "cached_tokens": 250},
                sql | {"actor": "user:admin", "requests": 2, "completion_tokens": 500, "day": YESTERDAY.isoformat()},
                base | {"actor": "user:admin", "requests": 1, "unknown": 1, "unknown_tokens": 300, "hour": 23},
                sql | {"actor": "key:theirs", "requests": 9, "prompt_tokens": 9999, "tenant_id": theirs},
            ],
        )
    return prefix


def table_of(answer: httpx.Response) -> list[list[str]]:
    assert answer.status_code == 200
    rows = BeautifulSoup(answer.text, "html.parser").select("#usage table.owned tbody tr")
    return [[cell.text.strip() for cell in row.select("td")] for row in rows]


async def test_sums_by_adapter_with_units_and_what_is_unknown(person: httpx.AsyncClient) -> None:
    page = await person.get("/usage")
    assert [row[:4] for row in table_of(page)] == [
        ["sqlaaaaaaaaaaaa, removed", "71 error", "1,000250 from cache", "500"],
        ["tinybase model", "1", "0", "0300 unknown"],
    ]
    words = BeautifulSoup(page.text, "html.parser").get_text(" ", strip=True)
    assert "1 request lost when a server process was killed" in words
    assert "25 % from cache" in words
    assert [figure.text for figure in BeautifulSoup(page.text, "html.parser").select(".figure .value")] == [
        *("8", "1,000", "500", "300"),
    ]
    assert "9,999" not in page.text


async def test_filters_narrow_page_points_and_file_alike(person: httpx.AsyncClient, booked: str) -> None:
    part = await person.get("/usage", params={"by": "key"}, headers=HTMX)
    assert "<html" not in part.text
    assert [row[:2] for row in table_of(part)] == [[f"=billinglp-{booked}…", "51 error"], ["adminuser", "3"]]
    asked = {"actor": "user:admin", "by": "day", "from": YESTERDAY.isoformat(), "to": TODAY.isoformat()}
    assert [row[:2] for row in table_of(await person.get("/usage", params=asked))] == [
        [TODAY.isoformat(), "1"],
        [YESTERDAY.isoformat(), "2"],
    ]
    points = (await person.get("/usage/points", params=asked)).json()
    assert (len(points["at"]), sum(points["requests"]), points["completion_tokens"][1]) == (48, 3, 500)
    assert points["at"][0] == datetime.combine(YESTERDAY, datetime.min.time(), UTC).timestamp()
    month = (await person.get("/usage/points")).json()
    assert (len(month["at"]), month["requests"][-2:], sum(month["requests"])) == (30, [2, 6], 8)
    lines = list(csv.DictReader(io.StringIO((await person.get("/usage/csv", params=asked)).text)))
    assert [(line["day"], line["requests"]) for line in lines] == [
        (TODAY.isoformat(), "1"),
        (YESTERDAY.isoformat(), "2"),
    ]


async def test_the_file_has_all_rows_and_the_api_agrees(person: httpx.AsyncClient) -> None:
    answer = await person.get("/usage/csv", params={"by": "day,key,adapter"})
    name = f"usage-default-{TODAY - timedelta(days=29)}-{TODAY}.csv"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    api = (await person.get("/api/v1/usage", params={"by": "day,key,adapter"})).json()["data"]
    of = {"tenant": "default", "from": str(TODAY - timedelta(days=29)), "to": str(TODAY)}
    assert [of | {name: "" if value is None else str(value) for name, value in row.items()} for row in api] == lines
    assert set(COUNTS) < lines[0].keys()


async def test_the_file_by_adapter_says_of_which_version_tenant_and_days_it_is(
    person: httpx.AsyncClient, trusted: Headers, state: State, adapter_folders: list[Path]
) -> None:
    """Also of a version that was removed since."""
    person.headers.update(trusted)
    for folder in adapter_folders:
        digest = (await add(person, "json", folder)).json()["version"]["digest"]
        with state.registry.database.write() as session:
            row: dict[str, Any] = {"day": TODAY.isoformat(), "hour": 1, "adapter_name": "json", "requests": 1}
            by = {"adapter_digest": digest, "tenant_id": tenant_id(session, "default"), "actor": "user:admin"}
            _book(session, [row | by])
    state.registry.adapters.remove("json@1", actor="system")
    asked = {"by": "adapter", "adapter": "json", "from": YESTERDAY.isoformat(), "to": TODAY.isoformat()}
    lines = list(csv.DictReader(io.StringIO((await person.get("/usage/csv", params=asked)).text)))
    assert {line["adapter_version"] for line in lines} == {"1", "2"}
    assert {(line["tenant"], line["from"], line["to"]) for line in lines} == {
        ("default", YESTERDAY.isoformat(), TODAY.isoformat())
    }


async def test_links_of_rows_lead_to_what_they_name(person: httpx.AsyncClient) -> None:
    links = BeautifulSoup((await person.get("/usage")).text, "html.parser").select("#usage tbody a")
    narrowed = await person.get(str(links[0]["href"]))
    assert [row[0] for row in table_of(narrowed)] == [TODAY.isoformat(), YESTERDAY.isoformat()]
    assert BeautifulSoup(narrowed.text, "html.parser").select("#adapter")[0]["value"] == "sql"


async def test_copies_for_shadows_are_found_by_their_link(person: httpx.AsyncClient, state: State) -> None:
    with state.registry.database.write() as session:
        row: dict[str, Any] = {"day": TODAY.isoformat(), "hour": 1, "adapter_name": "sql", "adapter_digest": "b" * 64}
        _book(session, [row | {"tenant_id": tenant_id(session, "default"), "actor": "shadow", "requests": 4}])
    page = await person.get("/usage", params={"by": "key"})
    links = BeautifulSoup(page.text, "html.parser").select("#usage tbody a")
    (link,) = [link for link in links if link.text == "shadow"]
    assert table_of(await person.get(str(link["href"])))[0][:2] == [TODAY.isoformat(), "4"]
    file = await person.get("/usage/csv", params={"actor": "shadow"})
    assert [line["requests"] for line in csv.DictReader(io.StringIO(file.text))] == ["4"]


async def test_the_last_day_of_all(person: httpx.AsyncClient) -> None:
    asked = {"from": "9999-12-30", "to": "9999-12-31"}
    assert (await person.get("/usage", params=asked)).status_code == 200
    points = (await person.get("/usage/points", params=asked)).json()
    assert len(points["at"]) == 48 and points["at"][-1] - points["at"][0] == 47 * 3600


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"from": "yesterday"}, "“From” must be a day"),
        ({"from": "2026-11-22", "to": "2026-11-21"}, "on or before the last"),
        ({"from": "0001-01-01"}, "ten years"),
        ({"to": "0001-01-01"}, "no days before"),
        ({"actor": "bob"}, "key:PREFIX or user:NAME"),
        ({"by": "colour"}, "by must be a comma-separated list of"),
    ],
)
async def test_wrong_filters_are_said_in_place(person: httpx.AsyncClient, asked: dict[str, str], words: str) -> None:
    for headers in ({}, HTMX):
        answer = await person.get("/usage", params=asked, headers=headers)
        assert answer.status_code == 400
        assert words in BeautifulSoup(answer.text, "html.parser").select("#usage [role=alert]")[0].text
    assert (await person.get("/usage/csv", params=asked)).status_code == 400


async def test_nothing_used_is_said_with_a_way_on(person: httpx.AsyncClient) -> None:
    assert (
        "No usage in these 2 days"
        in (await person.get("/usage", params={"from": "2020-01-01", "to": "2020-01-02"})).text
    )
    assert "Show everything for these dates" in (await person.get("/usage", params={"adapter": "none"})).text


async def test_viewers_see_usage_but_no_labels_of_keys(client: httpx.AsyncClient, state: State, booked: str) -> None:
    state.registry.users.create("vera", "correct horse battery", "viewer", actor="system")
    session, _ = await log_in(state, "vera")
    client.headers.pop("authorization")
    page = await client.get("/usage", params={"by": "key"}, headers=session | {"accept": "text/html"})
    assert f"lp-{booked}…" in page.text
    assert "=billing" not in page.text


def test_no_cell_is_a_formula() -> None:
    hostile = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", 'a","b', "plain", -5, 7, ""]
    [row] = csv.reader(io.StringIO(csv_lines([hostile])))
    assert row == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "'\r=1", "'\n=1", 'a","b', "plain", "-5", "7", ""]
