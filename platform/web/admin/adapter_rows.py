"""Adapters and versions as the templates show them."""

from dataclasses import dataclass

from loraplex.engine.protocol import AdapterStatus
from loraplex.registry.views import Adapter, Version

from ..state import State
from .words import TONES, age_words, residency_words, size_words


@dataclass(frozen=True, slots=True)
class AdapterRow:
    name: str
    version: int
    digest: str
    state: str
    tone: str
    pinned: bool
    rank: int
    size: str
    targets: str
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


def adapter_rows(state: State, tenant: str) -> list[AdapterRow]:
    adapters = state.registry.snapshots.current.of_tenant(tenant)
    return [adapter_row(state, one, one.latest() or one.versions[-1]) for one in adapters if one.versions]


def adapter_row(state: State, adapter: Adapter, version: Version) -> AdapterRow:
    words, tone = _state_words(state, adapter, version)
    return AdapterRow(
        name=adapter.name,
        version=version.number,
        digest=version.digest,
        state=words,
        tone=tone,
        pinned=adapter.pinned,
        rank=version.rank,
        size=size_words(version.size),
        targets=", ".join(version.target_modules),
        added=age_words(version.created_at),
        added_iso=version.created_at.isoformat(timespec="seconds"),
    )


def version_rows(adapter: Adapter) -> list[VersionRow]:
    return [
        VersionRow(
            number=version.number,
            digest=version.digest,
            rank=version.rank,
            size=size_words(version.size),
            uploader=version.uploaded_by,
            added=age_words(version.created_at),
            added_iso=version.created_at.isoformat(timespec="seconds"),
        )
        for version in reversed(adapter.versions)
    ]


def facts_of(version: Version) -> list[tuple[str, str]]:
    return [
        ("Rank", str(version.rank)),
        ("Alpha", f"{version.alpha:g}"),
        ("Targets", ", ".join(version.target_modules)),
        ("Parameters", f"{version.parameters:,}"),
        ("Size", size_words(version.size)),
        ("Trained on", version.base_model or "not said"),
        ("Uploaded by", version.uploaded_by),
    ]


def _state_words(state: State, adapter: Adapter, version: Version) -> tuple[str, str]:
    if not adapter.enabled or not version.enabled:
        return "Disabled", "warn"
    if version.broken:
        return f"Broken: {version.broken}", "bad"
    refused = state.reconciler.failures.get(version.digest)
    if refused is not None:
        return f"Failed: {refused}", "bad"
    status = _residency(state, version.digest)
    return (residency_words(status), TONES[status.state]) if status else ("Ready · on disk", "")


def _residency(state: State, digest: str) -> AdapterStatus | None:
    status = state.engine.status
    return next((one for one in status.adapters if one.digest == digest), None) if status else None
