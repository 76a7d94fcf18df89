"""Whatever strangers managed to store, every page shows it as text: no new element, no new attribute, no script."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from sqlalchemy.orm import Session

from loraplex.registry.adapters.routes import Trip
from loraplex.registry.adapters.views import Adapter
from loraplex.registry.certificates.certificates import CertificateRecord
from loraplex.registry.database import tables
from loraplex.registry.files.artifacts import CONFIG_FILE
from loraplex.registry.usage.ledger import COUNTS
from loraplex.web.certificates.standing import Standing
from loraplex.web.state import State

from .test_dashboard_figures import finished
from .test_pages import HTMX, first_data, login, person, trusted

__all__ = ["first_data", "login", "person", "trusted"]

PAYLOADS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "'><img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg/onload=alert(1)//",
    '"><svg><script>alert(1)</script></svg>',
    "<body onload=alert(1)>",
    "<iframe src=javascript:alert(1)>",
    '<iframe srcdoc="<script>alert(1)</script>">',
    "<a href=javascript:alert(1)>x</a>",
    "javascript:alert(1)",
    '" onmouseover="alert(1)',
    "' onmouseover='alert(1)",
    '" autofocus onfocus=alert(1) x="',
    "` onmouseover=`alert(1)",
    "<input autofocus onfocus=alert(1)>",
    "<details open ontoggle=alert(1)>",
    "<video><source onerror=alert(1)>",
    "<audio src=x onerror=alert(1)>",
    "<math><mtext></p><script>alert(1)</script>",
    "<table><td background=javascript:alert(1)>",
    "<object data=javascript:alert(1)>",
    "<embed src=javascript:alert(1)>",
    "<form action=javascript:alert(1)><button>",
    "<button formaction=javascript:alert(1)>x",
    "<base href=//evil.example/>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    "<style>*{background:url(//evil.example)}</style>",
    "<div style=background:url(//evil.example)>",
    '<div hx-get="//evil.example" hx-trigger="load">',
    '" hx-on:load="alert(1)',
    "{{ 7 * 7 }}{% raw %}",
    "${alert(1)}",
    "<!--<img src=x onerror=alert(1)>-->",
    "--><img src=x onerror=alert(1)>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "\u2028<img src=x onerror=alert(1)>\u0000\ufeff&lt;script&gt;",
)
PAGES = (
    *("/", "/adapters", "/adapters?show=failed", "/adapters/sql", "/cache", "/playground", "/requests", "/system"),
    *("/usage", "/usage?by=day,key,adapter", "/usage?actor=WORDS", "/keys?show=all", "/keys/0123456789ab", "/users"),
    *(
        "/users?search=WORDS",
        "/tenants",
        "/audit",
        "/audit/1",
        "/audit?action=nothing&subject=PRINTABLE",
        "/audit?from=WORDS",
    ),
)
PARTS = (
    "/adapters/sql/tensors?version=1",
    "/adapters/sql/profile",
    "/adapters/sql/states",
    "/adapters/sql/diff?before=1&after=1",
    "/cache/what-if",
    "/cache",
    "/requests",
    *("/requests?search=WORDS", "/usage", "/keys?search=WORDS", "/users", "/tenants", "/audit", "/audit/chain"),
)
SHARED = 99
"""Id of the rows that only this test makes."""


class Shape(HTMLParser):
    """How often each element stands there with which attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[f"{tag} {' '.join(sorted(name for name, _ in attrs))}"] += 1


def store_everywhere(state: State, words: str, config: str) -> None:
    """`words` in all that people, adapters' files, the engine and the operator may have said."""
    with state.registry.database.write() as session:
        version = session.query(tables.AdapterVersion).one()
        version.uploaded_by, version.artifact.base_model, version.artifact.broken = words, words, words
        version.artifact.target_modules = [words]
        version.report = {"findings": [{"check": words, "level": "warn", "message": words, "remedy": words}]}
        document = {"system_prompt": words, "chat_template": words, "stop": [words]}
        version.profile_digest = session.merge(tables.ServingProfile(digest="0" * 64, document=document)).digest
        digest = version.digest
        trip = Trip(version.number, 5, datetime.now(UTC), words)
        alias = tables.Alias(id=SHARED, adapter_id=version.adapter_id, name="prod", version_id=version.id)
        alias.updated_by, alias.trip = words, msgspec.to_builtins(trip)
        session.merge(alias)
        store_people(session, words)
    state.registry.snapshots._current = state.registry.snapshots._load()
    (state.registry.store.folder(digest) / CONFIG_FILE).unlink()
    (state.registry.store.folder(digest) / CONFIG_FILE).write_text(config)
    state.reconciler.failures = {digest: words}
    state.start_error = words
    state.settings = state.settings.model_copy(update={"model": words, "served_name": words, "host": words})
    if state.engine.info is not None:
        state.engine.info.compute = state.engine.info.architecture = words
    state.metrics.recent.clear()
    state.metrics.log = type(state.metrics.log)(state.metrics.log._since)
    hostile = finished(
        1.0, request_id=words, actor=words, model=words, version=words, status=words, reason=words, digests=(digest,)
    )
    state.metrics.recent.append(hostile)
    state.metrics.log.add(hostile)


def store_people(session: Session, words: str) -> None:
    """In keys, users, tenants, usage and the audit log; other words take the place of those that were there."""
    today = datetime.now(UTC).date().isoformat()
    counts = dict.fromkeys(COUNTS, 3)
    rows: tuple[Any, ...] = (
        tables.ApiKey(id=SHARED, tenant_id=1, prefix="0123456789ab", hash="0" * 64, name=words, created_by=words),
        tables.User(id=SHARED, tenant_id=1, name=words, role="viewer", password_hash="none"),
        tables.Tenant(id=SHARED, name=words),
        tables.UsageDay(
            id=SHARED, tenant_id=1, day=today, actor=f"key:{words}", adapter_digest=words, adapter_name=words, **counts
        ),
    )
    rows[0].scopes, rows[0].adapters = ["inference"], [words]
    for row in rows:
        session.merge(row)
    entry = session.get_one(tables.AuditRow, 1)
    entry.actor = entry.action = entry.subject = words
    entry.detail = {words: [words]}


@pytest.fixture
def certificates(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What hinders a certificate, what went wrong with the last and what changed since, on both pages that show one."""
    said = [""]

    def standing() -> Standing:
        words, now = said[0], datetime.now(UTC)
        failed = CertificateRecord("failed", None, words, words, 0.0, words, "default", now, now)
        return Standing(failed, None, None, (words,), words)

    async def of_the_base(*_: object) -> Standing:
        return standing()

    async def of_versions(_: State, adapter: Adapter) -> dict[int, Standing]:
        return {version.number: standing() for version in adapter.versions}

    monkeypatch.setattr("loraplex.web.admin.overview.live.standing_of", of_the_base)
    monkeypatch.setattr("loraplex.web.admin.adapters.adapters.standings_of", of_versions)
    yield said


async def test_forty_hostile_texts_stay_texts_on_every_page(
    person: httpx.AsyncClient, state: State, certificates: list[str]
) -> None:
    async def shapes(words: str) -> dict[str, Counter[str]]:
        store_everywhere(state, words, "{}")
        certificates[0] = words
        found = {}
        for path, headers in [*((path, {}) for path in PAGES), *((path, HTMX) for path in PARTS)]:
            printable = "".join(filter(str.isprintable, words))
            filled = path.replace("WORDS", quote(words)).replace("PRINTABLE", quote(printable))
            params = {"prompt": words} if path == "/playground" else None
            answer = await person.get(filled, params=params, headers=headers)
            assert answer.status_code == (400 if "?from=" in path or "?actor=" in path else 200), path
            found[path + str(headers)] = Shape(answer.text).elements
        return found

    assert len(PAYLOADS) == 40
    harmless = await shapes("harmless")
    failed = "The last measurement failed: harmless. Cause: <code>harmless</code>"
    for path, place in (("/", failed), ("/adapters/sql", failed), ("/adapters/sql", ". harmless</p>")):
        assert place in (await person.get(path)).text, path
    for payload in PAYLOADS:
        assert await shapes(payload) == harmless, payload
