"""Serving profiles: how a version is meant to be asked, by clients that send no more than their messages or text."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from ..audit import record
from ..database import tables
from ..database.database import Database
from ..database.tables import DEFAULT_TENANT
from ..errors import InvalidProfile
from ..names import Reference, parse_reference
from ..revision import bump_revision
from .rows import version_row
from .views import Version, version_view

MAX_BYTES: Final = {"system_prompt": 32 << 10, "chat_template": 64 << 10, "json_schema": 32 << 10}
"""Of UTF-8. Every process holds all profiles in memory."""
_BATCH: Final = 1000


class ServingProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """None: the request's own default. Bounds are those of requests, and are checked where these are."""

    system_prompt: str | None = None
    """Stands before messages among which there is no system message."""
    chat_template: str | None = None
    """Instead of the version's own or the base's."""
    tool_call_parser: str | None = None
    """How the model writes tool calls; None: as the server's setting says."""
    reasoning_parser: str | None = None
    """What it marks its reasoning with; None: as the server's setting says."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    json_schema: dict[str, Any] | None = None
    """Answers are JSON of this schema, unless a request has its own word on their form."""
    max_tokens: int | None = None
    """Of requests that name none."""
    max_tokens_limit: int | None = None
    """No request gets more."""

    def given(self) -> dict[str, Any]:
        """The fields that are set, as JSON has them."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, and of the schema as it was written: answers have its members in its order."""
        written = b"" if self.json_schema is None else msgspec.json.encode(self.json_schema)
        return hashlib.sha256(msgspec.json.encode(self, order="sorted") + written).hexdigest()


class ServingProfiles:
    """A profile belongs to a version: going back to a version goes back to its profile, a new version takes over the
    one of the version that the bare name means.

    Every method raises InvalidName or UnknownAdapter for a reference that means nothing to the tenant.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, reference: str, tenant: str = DEFAULT_TENANT) -> tuple[Version, ServingProfile | None]:
        """The version that the reference means, and its profile."""
        with self._database.read() as session:
            version = version_view(version_row(session, parse_reference(reference), tenant))
            wanted = {version.profile_digest} - {None}
            return version, read_profiles(session, wanted).get(version.profile_digest)

    def set(
        self, reference: str, profile: ServingProfile | None, *, actor: str, tenant: str = DEFAULT_TENANT
    ) -> Version:
        """Have requests asked by this from the next snapshot on; None: by nothing. Raises InvalidProfile."""
        with self._database.write() as session:
            bump_revision(session)
            row = version_row(session, parse_reference(reference), tenant)
            before, row.profile_digest = row.profile_digest, _keep(session, profile)
            session.flush()
            _drop_unused(session, before)
            subject = f"adapter:{Reference(row.adapter.name, row.number)}"
            detail = {} if profile is None else {"digest": profile.digest, "fields": sorted(profile.given())}
            action = "profile.clear" if profile is None else "profile.set"
            record(session, actor, action, subject, tenant_id=row.adapter.tenant_id, **detail)
            return version_view(row)


def check_texts(profile: ServingProfile) -> None:
    """Raise InvalidProfile for what cannot be kept."""
    if not profile.given():
        raise InvalidProfile("The profile is empty. Set a field, or remove the profile with DELETE.")
    for field, limit in MAX_BYTES.items():
        value: str | dict[str, Any] = getattr(profile, field) or ""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > limit or size != len(text.encode("utf-8", "replace")):
            raise InvalidProfile(f"{field} must be text of at most {limit:,} bytes of UTF-8, got {size:,}.", field)


def read_profiles(
    session: Session, digests: Collection[str | None], known: Mapping[str | None, ServingProfile] | None = None
) -> dict[str | None, ServingProfile]:
    """By digest; those of `known` are not read again, as they never change."""
    found = {digest: profile for digest, profile in (known or {}).items() if digest in digests}
    missing = [digest for digest in digests if digest and digest not in found]
    for start in range(0, len(missing), _BATCH):
        wanted = tables.ServingProfile.digest.in_(missing[start : start + _BATCH])
        rows = session.scalars(select(tables.ServingProfile).where(wanted))
        found |= {row.digest: msgspec.convert(row.document, ServingProfile) for row in rows}
    return found


def _keep(session: Session, profile: ServingProfile | None) -> str | None:
    """Its digest, once its row is in the session; None for none."""
    if profile is None:
        return None
    check_texts(profile)
    if session.get(tables.ServingProfile, profile.digest) is None:
        session.add(tables.ServingProfile(digest=profile.digest, document=profile.given()))
        session.flush()
    return profile.digest


def _drop_unused(session: Session, digest: str | None) -> None:
    """Changing a profile again and again must not fill the database."""
    used = select(tables.AdapterVersion.id).where(tables.AdapterVersion.profile_digest == digest).exists()
    session.execute(delete(tables.ServingProfile).where(tables.ServingProfile.digest == digest, ~used))
