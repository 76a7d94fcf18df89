"""The batches page: progress, results and the button that cancels, for who may have them."""

import asyncio

import httpx
from bs4 import BeautifulSoup

from loraplex.web.admin.batches.batch_rows import batch_row, matching_batches
from loraplex.web.state import State

from .batches.test_batches import begin, lines, prompt, until_ended
from .conftest import served
from .fake_engine import FakeEngine
from .test_access import ORIGIN, add_people, key, log_in
from .test_pages import HTML


def rows_of(page: httpx.Response) -> list[str]:
    soup = BeautifulSoup(page.text, "html.parser")
    return [row.get_text(" ", strip=True) for row in soup.select("#batch-rows tbody tr")]


async def test_a_batch_is_watched_and_cancelled(client: httpx.AsyncClient, state: State, engine: FakeEngine) -> None:
    ended = await until_ended(client, (await begin(client, lines([prompt(1), prompt(2), {}])))["id"])
    engine.delay = 0.05
    running = await begin(client, lines(map(prompt, range(500))), metadata={"job": "night"})
    while (await client.get(f"/v1/batches/{running['id']}")).json()["request_counts"]["completed"] < 5:
        await asyncio.sleep(0.02)
    session, token = await log_in(state)
    del client.headers["authorization"]
    client.headers.update(session | HTML)
    page = await client.get("/batches")
    newest, oldest = rows_of(page)
    assert running["id"] in newest and "in progress" in newest and "of 500 lines" in newest and "Cancel" in newest
    assert "completed" in oldest and "3 of 3 lines 1 failed" in oldest and "Cancel" not in oldest
    soup = BeautifulSoup(page.text, "html.parser")
    links = {link.text: str(link["href"]) for link in soup.select("#batch-rows a")}
    files = {"Output": ended["output_file_id"], "Errors": ended["error_file_id"]}
    assert links == {kind: f"/v1/files/{file}/content" for kind, file in files.items()}
    for link in links.values():
        assert (await client.get(link)).headers["content-disposition"].startswith("attachment")
    bars = [str(bar["width"]) for bar in soup.select("#batch-rows svg rect")]
    assert bars[1] == "100%" and bars[0] != "100%"
    for query, found in (("search=night", 1), ("search=absent", 0), ("status=running", 1), ("status=ended", 1)):
        assert len(rows_of(await client.get(f"/batches?{query}"))) == found, query
    gone = await client.post(f"/batches/{running['id']}/cancel", headers=ORIGIN | {"x-csrf-token": token})
    assert (gone.status_code, gone.headers["location"]) == (303, "/batches?done=cancel")
    client.headers.update(key(state, "inference"))
    client.headers.pop("cookie")
    assert (await until_ended(client, running["id"]))["status"] == "cancelled"


async def test_who_may_only_look_neither_cancels_nor_downloads(state: State, engine: FakeEngine) -> None:
    add_people(state)
    async with served(state) as client:
        await until_ended(client, (await begin(client, lines([prompt(1), {}])))["id"])
        engine.delay = 0.05
        made = await begin(client, lines(map(prompt, range(100))))
        del client.headers["authorization"]
        viewer, token = await log_in(state, "viewer")
        page = await client.get("/batches", headers=viewer | HTML)
        assert len(rows_of(page)) == 2
        assert not BeautifulSoup(page.text, "html.parser").select("#batch-rows :is(a, button)")
        proof = viewer | ORIGIN | {"x-csrf-token": token}
        assert (await client.post(f"/batches/{made['id']}/cancel", headers=proof)).status_code == 403
        rival, token = await log_in(state, "acme/admin")
        assert rows_of(await client.get("/batches", headers=rival | HTML)) == []
        proof = rival | ORIGIN | {"x-csrf-token": token}
        assert (await client.post(f"/batches/{made['id']}/cancel", headers=proof)).status_code == 404


async def test_why_a_batch_failed_is_in_its_row(client: httpx.AsyncClient, state: State) -> None:
    twice = lines([prompt(1)]) + lines([prompt(2)]) * 2
    await until_ended(client, (await begin(client, twice))["id"])
    [batch] = state.registry.batches.list("default").items
    row = batch_row(batch, {})
    assert "custom_id '0' is that of line 1 too. (1 more)" in row.reason and row.share is None and row.lines == "–"
    assert matching_batches([batch], "KEY", "", {}) == [batch] and not matching_batches([batch], "x y", "", {})
