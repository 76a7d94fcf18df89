"""Adapters and versions as the templates show them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from loraplex.engine.status import AdapterStatus
from loraplex.registry.adapters.views import Adapter, Version

from ...adapters.reconciler import Reconciler
from ...api.views import residency
from ...certificates.standing import Standing
from ...observability.hourly_use import HOURS
from ...observability.metrics import Metrics
from ...state import State
from ...targets import grouped
from ...units import age_words, size_words, span_words
from ..words import NOT_USED_YET, ON_DISK, TONES, residency_words, targets_words
from .certificate_view import agreement_words

NOT_LATELY: Final = "not in 24 h"
NONE: Final = "–"


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """`live` is the digest whose residency the page follows, empty while the adapter is not served."""

    name: str
    version: int
    digest: str
    live: str
    state: str
    tone: str
    pinned: bool
    aliases: tuple[str, ...]
    rank: int
    size: str
    targets: str
    target_modules: str
    used: str
    requests: str
    """In the last 24 hours."""
    added: str
    added_iso: str


@dataclass(frozen=True, slots=True)
class VersionRow:
    number: int
    digest: str
    rank: int
    size: str
    uploader: str
    added: str
    added_iso: str
    enabled: bool
    current: bool
    can_be_current: bool
    aliases: tuple[str, ...]
    agreement: str
    agreement_tone: str


def adapter_rows(state: State, adapters: Sequence[Adapter]) -> list[AdapterRow]:
    statuses = residency(state)
    return [_row(state, adapter, statuses) for adapter in adapters]


def adapter_row(state: State, adapter: Adapter) -> AdapterRow:
    return _row(state, adapter, residency(state))


def shown_version(adapter: Adapter) -> Version:
    """What the bare name means, or the newest when every version is disabled."""
    return adapter.current() or adapter.versions[-1]


def version_rows(adapter: Adapter, standings: Mapping[int, Standing], refused: Collection[int]) -> list[VersionRow]:
    """Newest first; `standings` by number; `refused`: numbers of those that the bare name cannot be rolled to."""
    current, agreement = adapter.current(), {number: agreement_words(one) for number, one in standings.items()}
    return [
        VersionRow(
            number=version.number,
            digest=version.digest,
            rank=version.rank,
            size=size_words(version.size),
            uploader=version.uploaded_by,
            added=age_words(version.created_at),
            added_iso=version.created_at.isoformat(timespec="seconds"),
            enabled=version.enabled,
            current=version is current,
            can_be_current=version is not current and version.number not in refused,
            aliases=tuple(sorted(alias for alias, number in adapter.aliases.items() if number == version.number)),
            agreement=agreement[version.number][0],
            agreement_tone=agreement[version.number][1],
        )
        for version in reversed(adapter.versions)
    ]


def facts_of(version: Version) -> list[tuple[str, str]]:
    return [
        ("Rank", str(version.rank)),
        ("Alpha", f"{version.alpha:g}"),
        ("Targets", ", ".join(grouped(version.target_modules))),
        *([("Invocation tokens", ", ".join(map(str, version.invocation_tokens)))] if version.invocation_tokens else []),
        ("Parameters", f"{version.parameters:,}"),
        ("File size", size_words(version.size)),
        ("Trained on", version.base_model or "not stated"),
        ("Uploaded by", version.uploaded_by),
    ]


def _row(state: State, adapter: Adapter, statuses: Mapping[str, AdapterStatus]) -> AdapterRow:
    version = shown_version(adapter)
    obstacle = obstacle_of(state.reconciler, adapter, version)
    status = statuses.get(version.digest)
    words, tone = obstacle or _residency_words(status)
    requests = state.metrics.hours.requests(adapter.tenant, adapter.name)
    return AdapterRow(
        name=adapter.name,
        version=version.number,
        digest=version.digest,
        live="" if obstacle else version.digest,
        state=words,
        tone=tone,
        pinned=adapter.pinned,
        aliases=tuple(sorted(adapter.aliases)),
        rank=version.rank,
        size=size_words(version.size),
        targets=targets_words(version.target_modules, state.base.signature.linear_words),
        target_modules=", ".join(grouped(version.target_modules)),
        used=_use_words(state.metrics, adapter),
        requests=f"{requests:,}" if requests else NONE,
        added=age_words(version.created_at),
        added_iso=version.created_at.isoformat(timespec="seconds"),
    )


def obstacle_of(reconciler: Reconciler, adapter: Adapter, version: Version) -> tuple[str, str] | None:
    """Why it is not served, in words with a tone."""
    if not adapter.enabled or not version.enabled:
        return "Disabled", "warn"
    reason = version.broken or reconciler.failures.get(version.digest)
    return (f"Failed: {reason}", "bad") if reason else None


def _use_words(metrics: Metrics, adapter: Adapter) -> str:
    """By its name: others may have the same bytes. From before the server's start the ledger knows the hour."""
    owner, use = (adapter.tenant, adapter.name), metrics.use
    running, since = use.running(*owner), use.seconds_since(*owner)
    if running:
        return f"{running} running"
    if since is not None:
        return f"idle {span_words(since)}"
    hours = metrics.hours.hours_since_use(*owner)
    if hours is not None:
        return f"within {hours + 1} h"
    first = adapter.versions[0].created_at
    return NOT_USED_YET if datetime.now(UTC) - first < timedelta(hours=HOURS - 1) else NOT_LATELY


def _residency_words(status: AdapterStatus | None) -> tuple[str, str]:
    return (residency_words(status), TONES[status.state]) if status else (ON_DISK, "")
