"""Labels that read as translated stay away: no page shows one, and nothing that makes pages or reports holds one."""

from pathlib import Path

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.web.state import State

from .test_access import add_people
from .test_pages import PAGES as WHOLE_PAGES
from .test_pages_by_role import furnish, visitor

WEB = Path(__file__).resolve().parents[2] / "platform" / "web"
LORA = WEB.parent / "lora"
SOURCES = sorted(
    [*WEB.glob("templates/**/*.html"), *WEB.glob("admin/**/*.py"), *WEB.glob("static/js/*.js"), *LORA.glob("**/*.py")]
)
PAGES = (
    *WHOLE_PAGES,
    *("/adapters?search=none", "/requests?search=none", "/keys?tenant=acme", "/users?tenant=acme", "/tenants/acme"),
)
BANNED = (
    "who is answered by which version",
    "Sampling as serving profiles say",
    "Version it shall mean",
    "the route of the bare name",
    "All is checked; nothing is registered yet",
    "every feature it uses is served",
    "what a request says wins",
    "asked as requests say",
    "Saved empty, it is removed",
    "Form of the answers",
    "Bound of max tokens",
    "It has neither come into memory nor left it",
    "Desired and observed",
    "gets none back by itself",
    "counted and thrown away",
    "All others do not exist for it",
    "empty: none",
    "Make the key",
    "You look at the tenant",
    "last asked to leave",
    "Books of blocks and pages",
    "Step time outside the model",
    "of them errors",
)


def found_in(text: str) -> list[str]:
    words = " ".join(text.split()).lower()
    return [phrase for phrase in BANNED if phrase.lower() in words]


def test_no_source_of_labels_holds_one() -> None:
    assert len(SOURCES) > 100
    found = {path.name: found_in(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


@pytest.mark.parametrize("login", ["admin", "viewer"])
async def test_no_page_shows_one(
    client: httpx.AsyncClient, state: State, adapter_folders: list[Path], login: str
) -> None:
    add_people(state)
    await furnish(client, state, adapter_folders)
    person = await visitor(client, state, login, {"accept": "text/html"})
    for path in PAGES:
        answer = await client.get(path, headers=person.headers)
        text = BeautifulSoup(answer.text, "html.parser").get_text(" ")
        assert found_in(text) == [], path
        assert "May" not in {one.text for one in BeautifulSoup(answer.text, "html.parser").select("dt, legend")}, path
