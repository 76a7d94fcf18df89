"""What is served: adapters with their versions and aliases, and the revision number of all that may change.

Rows of `artifacts` and `adapter_versions` say what was uploaded and never change their content; what changes is desired
state (enabled, pinned, aliases, removal), always together with the revision number.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from .access import Tenant
from .table import Table, utc_now


class Revision(Table):
    """One row: how often desired state has changed. Updating it first makes changes wait for one another."""

    __tablename__ = "generation"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[int] = mapped_column(BigInteger)


class Artifact(Table):
    """The bytes of an adapter and what preflight read in them; shared by every version with this digest."""

    __tablename__ = "artifacts"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    config_sha256: Mapped[str] = mapped_column(String(64), index=True)
    config_size: Mapped[int] = mapped_column(BigInteger)
    weights_sha256: Mapped[str] = mapped_column(String(64), index=True)
    weights_size: Mapped[int] = mapped_column(BigInteger)
    peft_type: Mapped[str] = mapped_column(String(63))
    rank: Mapped[int]
    alpha: Mapped[float]
    target_modules: Mapped[list[str]]
    parameters: Mapped[int] = mapped_column(BigInteger)
    vocab_size: Mapped[int] = mapped_column(default=0)
    """Tokens that it has rows for; 0: those of the base."""
    base_model: Mapped[str] = mapped_column(Text)
    """What the adapter's configuration calls its base; a label only."""
    invocation_tokens: Mapped[list[int] | None]
    """It acts on a prompt from the last occurrence of these on; none: on all of it. Null in rows older than this."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    broken: Mapped[str | None] = mapped_column(Text)
    """Why the bytes cannot be served; None while they can."""


class Upload(Table):
    """A file that a tenant has sent. Only who has sent it may make an adapter of it, or hear that it is here."""

    __tablename__ = "uploads"

    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"), primary_key=True, autoincrement=False)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Tokenizer(Table):
    """Added tokens and chat template that an adapter brings; shared by every version with this digest."""

    __tablename__ = "tokenizers"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    document: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class ServingProfile(Table):
    """How a version is meant to be asked; shared by every version with this digest."""

    __tablename__ = "serving_profiles"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    document: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Adapter(Table):
    """A name of one tenant. A removed name may be used again; its version numbers go on counting."""

    __tablename__ = "adapters"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(63))
    enabled: Mapped[bool] = mapped_column(default=True)
    pinned: Mapped[bool] = mapped_column(default=False)
    """The version that the bare name means stays resident."""
    prompts_digest: Mapped[str | None] = mapped_column(ForeignKey("golden_prompts.digest"))
    """What its certificates are measured on; None: generated prompts."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    created_by: Mapped[str] = mapped_column(String(127))
    removed_at: Mapped[datetime | None]
    removed_by: Mapped[str | None] = mapped_column(String(127))

    tenant: Mapped[Tenant] = relationship()
    versions: Mapped[list["AdapterVersion"]] = relationship(back_populates="adapter", order_by="AdapterVersion.number")
    aliases: Mapped[list["Alias"]] = relationship(
        back_populates="adapter", order_by="Alias.name", cascade="all, delete-orphan"
    )


class AdapterVersion(Table):
    __tablename__ = "adapter_versions"
    __table_args__ = (UniqueConstraint("adapter_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    adapter_id: Mapped[int] = mapped_column(ForeignKey("adapters.id"))
    number: Mapped[int]
    digest: Mapped[str] = mapped_column(ForeignKey("artifacts.digest"), index=True)
    base_fingerprint: Mapped[str] = mapped_column(String(64))
    """The base model that preflight checked it against."""
    tokenizer_digest: Mapped[str | None] = mapped_column(ForeignKey("tokenizers.digest"))
    """None: it uses the base's."""
    profile_digest: Mapped[str | None] = mapped_column(ForeignKey("serving_profiles.digest"), index=True)
    """None: it is asked as the request says."""
    report: Mapped[dict[str, Any]] = mapped_column(deferred=True)
    uploaded_by: Mapped[str] = mapped_column(String(127))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    enabled: Mapped[bool] = mapped_column(default=True)
    pinned: Mapped[bool] = mapped_column(default=False)
    removed_at: Mapped[datetime | None]
    removed_by: Mapped[str | None] = mapped_column(String(127))

    adapter: Mapped[Adapter] = relationship(back_populates="versions")
    artifact: Mapped[Artifact] = relationship()


class Alias(Table):
    """A name for versions: `version` is the stable one, which answers all callers but those of the candidates."""

    __tablename__ = "aliases"
    __table_args__ = (UniqueConstraint("adapter_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    adapter_id: Mapped[int] = mapped_column(ForeignKey("adapters.id"))
    name: Mapped[str] = mapped_column(String(63))
    version_id: Mapped[int] = mapped_column(ForeignKey("adapter_versions.id"))
    previous_id: Mapped[int | None] = mapped_column(ForeignKey("adapter_versions.id"))
    """The stable one before; what a rollback goes back to."""
    share_by: Mapped[str] = mapped_column(String(7), default="caller")
    """`routes.ShareBy`: what the candidates' weights share out."""
    rolled_back: Mapped[bool] = mapped_column(default=False)
    """Since then nobody has shared the callers out anew: whoever rolls back once more repeats himself."""
    guard: Mapped[dict[str, Any] | None]
    """`routes.Guard`; none: nobody watches the candidates."""
    trip: Mapped[dict[str, Any] | None]
    """`routes.Trip`: why the guard took a candidate out, until a person changes the route."""
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_by: Mapped[str] = mapped_column(String(127))

    adapter: Mapped[Adapter] = relationship(back_populates="aliases")
    version: Mapped[AdapterVersion] = relationship(foreign_keys=version_id)
    previous: Mapped[AdapterVersion | None] = relationship(foreign_keys=previous_id)
    candidates: Mapped[list["AliasCandidate"]] = relationship(cascade="all, delete-orphan")


class AliasCandidate(Table):
    """A version beside the stable one. `weight`: per cent of the callers or requests, which get its answers;
    `shadow`: per cent of the requests, of which it gets a copy."""

    __tablename__ = "alias_candidates"

    alias_id: Mapped[int] = mapped_column(ForeignKey("aliases.id"), primary_key=True, autoincrement=False)
    version_id: Mapped[int] = mapped_column(ForeignKey("adapter_versions.id"), primary_key=True, autoincrement=False)
    weight: Mapped[int] = mapped_column(default=0)
    shadow: Mapped[int] = mapped_column(default=0)
    since: Mapped[datetime] = mapped_column(default=utc_now)
    """When it last began to have a weight; the guard counts from there."""

    version: Mapped[AdapterVersion] = relationship()


class Undo(Table):
    """The last change of an adapter that can be undone (`undo.py`), whether its time is over or not."""

    __tablename__ = "undos"

    adapter_id: Mapped[int] = mapped_column(ForeignKey("adapters.id"), primary_key=True, autoincrement=False)
    change: Mapped[str] = mapped_column(String(16))
    """Its random name."""
    at: Mapped[datetime] = mapped_column(index=True)
    actor: Mapped[str] = mapped_column(String(127))
    action: Mapped[str] = mapped_column(String(63))
    subject: Mapped[str] = mapped_column(String(255))
    before: Mapped[dict[str, Any]]
    after: Mapped[dict[str, Any]]

    adapter: Mapped[Adapter] = relationship()
