"""Keys as the pages show them: what each may, how much of it is used, and whether it still opens anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from loraplex.registry.access.keys import ApiKey
from loraplex.registry.access.scopes import SCOPES

from ...state import State
from ...units import age_words, span_words
from ..figures.day_use import DayUse, day_use
from ..forms import quota_words

GROUPS: Final = {"": "In use", "expired": "Expired", "revoked": "Revoked", "all": "All keys"}
"""What the page can be narrowed to; at first all but those revoked."""
SOON: Final = timedelta(days=7)
NAMES_SHOWN: Final = 2


@dataclass(frozen=True, slots=True)
class KeyRow:
    prefix: str
    name: str
    scopes: tuple[str, ...]
    models: str
    all_models: str
    """Every name, where `models` leaves some out."""
    state: str
    tone: str
    usable: bool
    expires: str
    expires_iso: str
    limits: tuple[str, ...]
    today: DayUse
    used: str
    used_iso: str
    created: str
    created_iso: str
    created_by: str


def matching_keys(keys: Sequence[ApiKey], search: str, group: str) -> list[ApiKey]:
    """Newest first: whose label contains `search`, or whose prefix begins with it; `group` is one of GROUPS."""
    wanted = search.strip().lower().removeprefix("lp-")
    return [
        key
        for key in keys
        if _is_in(key, group) and (wanted in key.name.lower() or (wanted and key.prefix.startswith(wanted)))
    ]


def key_rows(state: State, keys: Sequence[ApiKey]) -> list[KeyRow]:
    return [key_row(state, key) for key in keys]


def key_row(state: State, key: ApiKey) -> KeyRow:
    words, tone = _state_words(key)
    names = sorted(key.adapters or ())
    last_used = state.used_keys.last(key.prefix) or key.last_used_at
    return KeyRow(
        prefix=key.prefix,
        name=key.name,
        scopes=tuple(scope for scope in SCOPES if scope in key.scopes),
        models=_models_words(names),
        all_models=", ".join(names),
        state=words,
        tone=tone,
        usable=key.revoked_at is None,
        expires=_expiry_words(key),
        expires_iso=_iso(key.expires_at),
        limits=tuple(quota_words(key.quota)),
        today=day_use(state.quotas, key.tenant, f"key:{key.prefix}", key.quota),
        used=age_words(last_used) if last_used else "never",
        used_iso=_iso(last_used),
        created=age_words(key.created_at),
        created_iso=_iso(key.created_at),
        created_by=key.created_by,
    )


def _is_in(key: ApiKey, group: str) -> bool:
    if group == "all":
        return True
    if group == "revoked":
        return key.revoked_at is not None
    return key.revoked_at is None and (group != "expired" or _is_over(key))


def _is_over(key: ApiKey) -> bool:
    return key.expires_at is not None and key.expires_at <= datetime.now(UTC)


def _state_words(key: ApiKey) -> tuple[str, str]:
    if key.revoked_at is not None:
        return "Revoked", "bad"
    if _is_over(key):
        return "Expired", "bad"
    if key.expires_at is not None and key.expires_at - datetime.now(UTC) < SOON:
        return "Expires soon", "warn"
    return "Active", "good"


def _models_words(names: Sequence[str]) -> str:
    if not names:
        return "all models"
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _expiry_words(key: ApiKey) -> str:
    if key.expires_at is None:
        return "never"
    left = (key.expires_at - datetime.now(UTC)).total_seconds()
    return f"in {span_words(left)}" if left > 0 else f"{span_words(-left)} ago"


def _iso(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat(timespec="seconds")
