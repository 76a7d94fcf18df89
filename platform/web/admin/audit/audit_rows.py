"""Rows of the audit log as the pages show them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from loraplex.registry.audit import AuditEntry, AuditFilter

from ...access.caller import Caller
from ...units import age_words
from ..addresses import local_address

ACTIONS: Final = (
    *(
        "adapter.add",
        "adapter.evict",
        "adapter.load",
        "adapter.remove",
        "alias.set",
        "alias.promote",
        "alias.rollback",
        "alias.trip",
    ),
    *("certificate.request", "key.create", "key.limit", "key.revoke", "profile.set"),
    *("tenant.create", "tenant.disable", "tenant.limit"),
    *("user.create", "user.login", "user.login_failed", "user.remove", "user.set_password", "user.set_role"),
)
"""Suggestions; any part of any action is found."""
PLACES: Final = {"adapter": "/adapters/", "key": "/keys/", "user": "/users/"}
"""Kind of a subject -> where its page is."""
MOST_LETTERS: Final = 120


@dataclass(frozen=True, slots=True)
class AuditLine:
    id: int
    at_iso: str
    at: str
    tenant: str
    actor: str
    actor_name: str
    """The label of the key that it is, if it is one."""
    action: str
    subject: str
    place: str
    """Address of the subject's page; empty: there is none for whoever looks."""
    detail: str
    intact: bool


def audit_line(entry: AuditEntry, caller: Caller) -> AuditLine:
    return AuditLine(
        id=entry.id,
        at_iso=entry.at.isoformat(timespec="milliseconds"),
        at=age_words(entry.at),
        tenant=entry.tenant or "the server itself",
        actor=entry.actor,
        actor_name=entry.actor_name,
        action=entry.action,
        subject=entry.subject,
        place=_place(entry, caller),
        detail=_clipped(detail_words(entry.detail)),
        intact=entry.intact,
    )


def detail_words(detail: Mapping[str, Any]) -> str:
    """name=value, one after the other."""
    return ", ".join(f"{name}={_value(value)}" for name, value in detail.items() if value is not None)


def detail_json(entry: AuditEntry) -> str:
    return json.dumps(entry.detail, indent=2, ensure_ascii=False, sort_keys=True)


def filter_words(wanted: AuditFilter) -> dict[str, str]:
    """The filters as the page's address has them."""
    days = {"from": wanted.first, "to": wanted.last}
    return {
        "actor": wanted.actor,
        "action": wanted.action,
        "subject": wanted.subject,
        **{name: day.isoformat() if day else "" for name, day in days.items()},
    }


def _place(entry: AuditEntry, caller: Caller) -> str:
    kind, _, name = entry.subject.partition(":")
    if kind not in PLACES or not name or entry.tenant is None:
        return ""
    path = f"{PLACES[kind]}{name.partition('@')[0] if kind == 'adapter' else name}"
    return local_address(path, "" if entry.tenant == caller.own_tenant else entry.tenant)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _clipped(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
