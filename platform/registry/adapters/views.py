"""Adapters as the rest of the program sees them: immutable, read in one go, without a session behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from ..database import tables
from ..names import DEFAULT, LATEST
from .routes import Candidate, Guard, Route, Trip, share_by_of


@dataclass(frozen=True, slots=True)
class Version:
    """One immutable upload. `size` is bytes of the weights file, `broken` says why it cannot be served.

    `vocab_size` 0 and `tokenizer_digest` None: as the base has them.
    """

    number: int
    digest: str
    size: int
    peft_type: str
    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    parameters: int
    base_model: str
    base_fingerprint: str
    vocab_size: int
    tokenizer_digest: str | None
    profile_digest: str | None
    """Of its serving profile; None: none."""
    uploaded_by: str
    created_at: datetime
    enabled: bool
    pinned: bool
    broken: str | None
    invocation_tokens: tuple[int, ...]
    """It acts on a prompt from the last occurrence of these on; none: on all of it."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A name with its versions, oldest first; removed ones are not shown. `routes`: by alias.

    `prompts_digest`: of its golden prompts; None: certificates are measured on generated ones.
    """

    tenant: str
    name: str
    enabled: bool
    pinned: bool
    created_at: datetime
    created_by: str
    versions: tuple[Version, ...]
    routes: Mapping[str, Route]
    prompts_digest: str | None

    @property
    def aliases(self) -> Mapping[str, int]:
        """Name -> number of the stable version."""
        return {name: route.stable for name, route in self.routes.items()}

    def latest(self) -> Version | None:
        """The newest enabled version."""
        return next((version for version in reversed(self.versions) if version.enabled), None)

    def inherited_profile(self) -> str | None:
        """Digest of the serving profile that the next version begins with."""
        before = self.current() or next(reversed(self.versions), None)
        return None if before is None else before.profile_digest

    def current(self) -> Version | None:
        """What the bare name means: the stable version of the alias `default`, else the newest enabled version."""
        return self.select(None)

    def named(self) -> frozenset[int]:
        """Numbers of all versions that the bare name may be answered by."""
        route, current = self.routes.get(DEFAULT), self.current()
        if route is not None:
            return frozenset(version for version, weight in route.weights.items() if weight)
        return frozenset() if current is None else frozenset({current.number})

    def pins(self, version: Version) -> bool:
        """Whether it is to stay in memory: by itself, or as one that the pinned name may be answered by."""
        return version.pinned or (self.pinned and version.number in self.named())

    def route(self, selector: int | str | None) -> Route | None:
        """Of the alias that `name@selector` or the bare name goes through; None: it names one version."""
        return self.routes.get(DEFAULT if selector is None else selector) if not isinstance(selector, int) else None

    def select(self, selector: int | str | None) -> Version | None:
        """The version that `name@selector` means, enabled or not, of a route the stable one; None: there is none."""
        route = self.route(selector)
        if route is None and (selector is None or selector == LATEST):
            return self.latest()
        number = selector if route is None else route.stable
        return next((version for version in self.versions if version.number == number), None)


def load_adapters(session: Session) -> Sequence[Adapter]:
    """All adapters of all tenants that are not removed, by name."""
    rows = session.scalars(
        select(tables.Adapter)
        .where(tables.Adapter.removed_at.is_(None))
        .order_by(tables.Adapter.name)
        .options(
            selectinload(tables.Adapter.tenant),
            selectinload(tables.Adapter.versions).selectinload(tables.AdapterVersion.artifact),
            selectinload(tables.Adapter.aliases).options(
                selectinload(tables.Alias.version),
                selectinload(tables.Alias.previous),
                selectinload(tables.Alias.candidates).selectinload(tables.AliasCandidate.version),
            ),
        )
    )
    return [adapter_view(row) for row in rows]


def adapter_view(row: tables.Adapter) -> Adapter:
    return Adapter(
        tenant=row.tenant.name,
        name=row.name,
        enabled=row.enabled,
        pinned=row.pinned,
        created_at=row.created_at,
        created_by=row.created_by,
        versions=tuple(version_view(version) for version in row.versions if version.removed_at is None),
        routes={alias.name: route_view(alias) for alias in row.aliases},
        prompts_digest=row.prompts_digest,
    )


def route_view(row: tables.Alias) -> Route:
    candidates = sorted(row.candidates, key=lambda candidate: candidate.version.number)
    return Route(
        alias=row.name,
        stable=row.version.number,
        candidates=tuple(Candidate(one.version.number, one.weight, one.shadow, one.since) for one in candidates),
        share_by=share_by_of(row.share_by),
        previous=None if row.previous is None else row.previous.number,
        guard=None if row.guard is None else msgspec.convert(row.guard, Guard),
        trip=None if row.trip is None else msgspec.convert(row.trip, Trip),
        updated_at=row.updated_at,
        updated_by=row.updated_by,
    )


def version_view(row: tables.AdapterVersion) -> Version:
    artifact = row.artifact
    return Version(
        number=row.number,
        digest=row.digest,
        size=artifact.weights_size,
        peft_type=artifact.peft_type,
        rank=artifact.rank,
        alpha=artifact.alpha,
        target_modules=tuple(artifact.target_modules),
        parameters=artifact.parameters,
        base_model=artifact.base_model,
        base_fingerprint=row.base_fingerprint,
        vocab_size=artifact.vocab_size,
        tokenizer_digest=row.tokenizer_digest,
        profile_digest=row.profile_digest,
        uploaded_by=row.uploaded_by,
        created_at=row.created_at,
        enabled=row.enabled,
        pinned=row.pinned,
        broken=artifact.broken,
        invocation_tokens=tuple(artifact.invocation_tokens or ()),
    )
