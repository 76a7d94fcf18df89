"""Adapters as the rest of the program sees them: immutable, read in one go, without a session behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from . import tables
from .names import LATEST


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
    """A name with its versions, oldest first; removed ones are not shown. `aliases`: name -> version number.

    `prompts_digest`: of its golden prompts; None: certificates are measured on generated ones.
    """

    tenant: str
    name: str
    enabled: bool
    pinned: bool
    created_at: datetime
    created_by: str
    versions: tuple[Version, ...]
    aliases: Mapping[str, int]
    prompts_digest: str | None

    def latest(self) -> Version | None:
        """What the bare name means: the newest enabled version."""
        return next((version for version in reversed(self.versions) if version.enabled), None)

    def inherited_profile(self) -> str | None:
        """Digest of the serving profile that the next version begins with."""
        before = self.latest() or next(reversed(self.versions), None)
        return None if before is None else before.profile_digest

    def select(self, selector: int | str | None) -> Version | None:
        """The version that `name@selector` means, enabled or not; None when there is none."""
        if selector is None or selector == LATEST:
            return self.latest()
        number = self.aliases.get(selector) if isinstance(selector, str) else selector
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
            selectinload(tables.Adapter.aliases).selectinload(tables.Alias.version),
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
        aliases={alias.name: alias.version.number for alias in row.aliases},
        prompts_digest=row.prompts_digest,
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
