"""One adapter's page as plain HTTP: roll back, what differs between versions, tensors, desired beside observed."""

import asyncio
import json
import shutil
from pathlib import Path

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.registry.adapters.promotion import PromotionRule
from loraplex.registry.adapters.views import Version
from loraplex.registry.files.artifacts import CONFIG_FILE
from loraplex.web.management.registration import add_from_folder
from loraplex.web.state import State

from .fake_engine import FakeEngine
from .test_pages import HTMX, Headers, first_data, login, person, trusted

__all__ = ["first_data", "login", "person", "trusted"]


@pytest.fixture
def three_versions(state: State, adapter_folders: list[Path], tmp_path: Path) -> None:
    """sql@2 has other values, sql@3 another alpha and a field that means nothing to us."""
    other = Path(shutil.copytree(adapter_folders[0], tmp_path / "other"))
    config = json.loads((other / CONFIG_FILE).read_text())
    (other / CONFIG_FILE).write_text(json.dumps(config | {"lora_alpha": 3, "revision": "main"}))
    for folder in (adapter_folders[1], other):
        add_from_folder(state.registry, state.base, "sql", folder, actor="cli")


async def latest(state: State) -> Version:
    found = (await asyncio.to_thread(state.registry.adapters.get, "sql")).latest()
    assert found is not None
    return found


async def test_rolling_back_and_forth(
    three_versions: None, person: httpx.AsyncClient, trusted: Headers, state: State, engine: FakeEngine
) -> None:
    for number in (1, 3, 2):
        answer = await person.post(f"/adapters/sql@{number}/current", headers=trusted)
        assert (answer.status_code, answer.headers["location"]) == (303, "/adapters/sql?done=current")
        assert (await latest(state)).number == number
        assert (await latest(state)).digest in engine.registered
    for wrong in ("sql", "sql@9"):
        assert (await person.post(f"/adapters/{wrong}/current", headers=trusted)).status_code == 404
    assert (await latest(state)).number == 2


async def test_rolling_to_a_disabled_version_enables_it(
    three_versions: None, person: httpx.AsyncClient, trusted: Headers, state: State
) -> None:
    adapters = state.registry.adapters
    adapters.routes.set("sql", "default", 3, actor="cli")
    adapters.set_enabled("sql@1", False, actor="cli")
    assert (await person.post("/adapters/sql@1/current", headers=trusted)).status_code == 303
    adapter = adapters.get("sql")
    assert adapter.aliases == {"default": 1}
    assert [version.number for version in adapter.versions if version.enabled] == [1, 2, 3]


async def test_rolling_back_never_serves_a_version_in_between(
    three_versions: None, person: httpx.AsyncClient, trusted: Headers, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, adapters = [], state.registry.adapters
    change = adapters.roll_to

    def watched(reference: str, *, actor: str, tenant: str) -> object:
        """All of it is one transaction."""
        changed = change(reference, actor=actor, tenant=tenant)
        found = adapters.get("sql").latest()
        served.append(found and found.number)
        return changed

    monkeypatch.setattr(type(adapters), "roll_to", lambda self, *args, **fields: watched(*args, **fields))
    await person.post("/adapters/sql@1/current", headers=trusted)
    assert served == [1]


async def test_no_way_back_is_offered_that_an_alias_closes(
    three_versions: None, person: httpx.AsyncClient, trusted: Headers, state: State
) -> None:
    """Whatever is offered is done, whatever is not is refused; and the page says what to do instead."""
    routes = state.registry.adapters.routes
    assert await offered(person) == {1, 2}
    assert "To roll back to" not in (await person.get("/adapters/sql")).text
    for stable, open_to, words in ((3, set(), "versions up to 2"), (2, {2}, "version 1")):
        routes.set("sql", "prod", stable, actor="cli")
        assert await offered(person) == open_to
        note = f"To roll back to {words}, add a route for &#39;default&#39; below"
        page = (await person.get("/adapters/sql")).text
        assert note in page and "which serve the callers of sql@prod." in page
        for number in {1, 2} - open_to:
            answer = await person.post(f"/adapters/sql@{number}/current", headers=trusted)
            assert answer.status_code == 409 and "the callers of sql@prod" in answer.text
    routes.set("sql", "default", 3, actor="cli")
    assert await offered(person) == {1, 2}
    assert "To roll back to" not in (await person.get("/adapters/sql")).text
    for number in (1, 2):
        assert (await person.post(f"/adapters/sql@{number}/current", headers=trusted)).status_code == 303
    assert await offered(person) == {1, 3}


async def test_no_way_back_is_offered_that_the_operators_rule_closes(
    three_versions: None,
    person: httpx.AsyncClient,
    trusted: Headers,
    state: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes = state.registry.adapters.routes
    routes.set("sql", "default", 3, actor="cli")
    monkeypatch.setattr(routes._shares, "_rule", PromotionRule(0.9, lambda subject: "0" * 64))
    assert await offered(person) == set()
    for number in (1, 2):
        answer = await person.post(f"/adapters/sql@{number}/current", headers=trusted)
        assert answer.status_code == 409 and "no valid parity certificate" in answer.text


async def test_disable_is_offered_for_what_no_alias_leads_to(
    three_versions: None, person: httpx.AsyncClient, trusted: Headers, state: State
) -> None:
    assert await offered(person, "disable") == {1, 2, 3}
    state.registry.adapters.routes.set("sql", "prod", 2, actor="cli")
    assert await offered(person, "disable") == {1, 3}
    assert (await person.post("/adapters/sql@2/disable", headers=trusted)).status_code == 409
    assert (await person.post("/adapters/sql@1/disable", headers=trusted)).status_code == 303


async def offered(person: httpx.AsyncClient, action: str = "current") -> set[int]:
    """Numbers of the versions that the page has this action for."""
    soup = BeautifulSoup((await person.get("/adapters/sql")).text, "html.parser")
    forms = soup.select(f"#versions form[data-action={action}]")
    return {int(str(form["action"]).split("@")[1].split("/")[0]) for form in forms}


async def test_what_differs_between_versions(three_versions: None, person: httpx.AsyncClient) -> None:
    async def text(before: int, after: int) -> str:
        answer = await person.get("/adapters/sql/diff", params={"before": before, "after": after}, headers=HTMX)
        assert answer.status_code == 200
        return " ".join(BeautifulSoup(answer.text, "html.parser").get_text(" ").split())

    assert "The configuration has not changed. Tensors:" in await text(1, 2)
    assert "with the same shape and different values." in await text(1, 2)
    changed = await text(1, 3)
    assert "lora_alpha" in changed
    assert 'revision null "main"' in changed or 'revision not set "main"' in changed
    assert "the same bytes" in await text(2, 2)
    assert (await person.get("/adapters/sql/diff", params={"before": "9", "after": "1"})).status_code == 404
    assert (await person.get("/adapters/sql/diff", params={"before": "x", "after": ""})).status_code == 404


async def test_the_tensors_of_a_version(person: httpx.AsyncClient) -> None:
    answer = await person.get("/adapters/sql/tensors", params={"version": "1"}, headers=HTMX)
    rows = [row.get_text(" ", strip=True) for row in BeautifulSoup(answer.text, "html.parser").select("tbody tr")]
    assert rows
    assert all("lora_" in row and " × " in row and row.endswith(("B", "kB")) for row in rows)


async def test_desired_stands_beside_observed(person: httpx.AsyncClient, trusted: Headers, engine: FakeEngine) -> None:
    async def states() -> dict[str, str]:
        soup = BeautifulSoup((await person.get("/adapters/sql")).text, "html.parser")
        return {row.th.text: row.get_text(" ", strip=True) for row in soup.select(".states tbody tr") if row.th}

    assert "loaded on demand ✓ on disk" in (await states())["Memory"]
    await person.post("/adapters/sql/pin", headers=trusted)
    engine.resident.clear()
    assert "in memory (pinned) … on disk" in (await states())["Memory"]
    await person.post("/adapters/sql/disable", headers=trusted)
    assert await states() == {}
