"""Where the audit log is read: in the database here, or over a server's API; both answer the same rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ...api.answers import chain_json, entry_json
from ...api.audit_file import Format, parts_of
from ...settings.settings import Settings
from ..opened import opened_database
from ..output import Fields
from ..remote import Remote

if TYPE_CHECKING:
    from loraplex.registry.audit import AuditFilter
    from loraplex.registry.registry import Registry

PAGE: Final = 1000
"""Rows that the API answers at once."""
Everyone = Annotated[
    bool, typer.Option("--everyone", help="All tenants and the server itself (default on the local database).")
]


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Rows that are asked for. `tenant` empty: over the API that of the key, else all."""

    tenant: str
    everyone: bool
    actor: str
    action: str
    subject: str
    first: str
    to: str

    def __post_init__(self) -> None:
        if self.tenant and self.everyone:
            raise ValueError("--tenant and --everyone cannot be combined. Use one of them.")

    def query(self, remote: Remote) -> dict[str, str]:
        """Of all tenants where no key says of which, as on the database here."""
        everyone = self.everyone or (remote.found and not self.tenant)
        asked = {"tenant": self.tenant, **self._asked, "everyone": "true" if everyone else ""}
        return {name: text for name, text in asked.items() if text}

    def filter(self, registry: "Registry") -> "AuditFilter":
        """Raises ValueError, RegistryError for a tenant that there is not."""
        from ...audit.audit_query import audit_query

        if self.tenant:
            registry.tenants.get(self.tenant)
        return audit_query(self.tenant or None, self._asked)

    @property
    def _asked(self) -> dict[str, str]:
        days = {"from": self.first, "to": self.to}
        return {"actor": self.actor, "action": self.action, "subject": self.subject, **days}


def listed(remote: Remote | None, asked: AuditQuery, limit: int, before: int | None) -> Sequence[Fields]:
    """Newest first."""
    if remote is None:
        with opened_database(Settings()) as registry:
            return [entry_json(entry) for entry in registry.audit.search(asked.filter(registry), limit, before)]
    rows: list[Fields] = []
    while len(rows) < limit:
        most = min(PAGE, limit - len(rows))
        older = {} if before is None else {"before": str(before)}
        page = remote.ask("GET", "/audit", limit=str(most), **older, **asked.query(remote))["data"]
        rows += page
        if len(page) < most:
            break
        before = page[-1]["id"]
    return rows


def export_of(remote: Remote | None, asked: AuditQuery, format: Format) -> Iterator[str]:
    if remote is not None:
        yield from remote.text("/audit/export", format=format, **asked.query(remote))
        return
    with opened_database(Settings()) as registry:
        yield from parts_of(registry.audit, asked.filter(registry), format)


def chain_of(remote: Remote | None, head: str) -> Fields:
    """Whether the chain is what was written, and has a head that was kept. All but the operator are told no more."""
    if remote is not None:
        kept = {"head": head} if head else {}
        chain: Fields = remote.ask("GET", "/audit", limit="1", verify="true", **kept)["chain"]
        return chain
    with opened_database(Settings()) as registry:
        return chain_json(registry.audit.verify(head or None))
