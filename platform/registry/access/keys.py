"""API keys: `lp-<prefix>_<secret>`, shown once, stored as an HMAC and found by the prefix."""

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from msgspec import UNSET, UnsetType
from sqlalchemy import select, update
from sqlalchemy.orm import Session, selectinload

from ..audit import record
from ..database import tables
from ..database.database import Database
from ..database.tables import DEFAULT_TENANT, utc_now
from ..errors import InvalidKey, RegistryError
from ..names import check_label
from ..revision import bump_revision
from .key_format import check_readable, check_token, new_token, token_hash, token_prefix
from .quotas import OPEN, Quota, quota_of, set_quota
from .scopes import ADMIN, SCOPES
from .shared_secrets import API_KEYS, shared_secret
from .tenants import tenant_id

_PREFIX = re.compile(r"[0-9a-fx]{12}")
MAX_ADAPTERS: Final = 1000


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Everything about a key but the key. `prefix` names it in lists and logs."""

    prefix: str
    name: str
    tenant: str
    scopes: frozenset[str]
    created_at: datetime
    created_by: str
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    adapters: frozenset[str] | None
    """Names of the models it is for; None: all of its tenant."""
    quota: Quota

    def allows(self, scope: str) -> bool:
        return scope in self.scopes or ADMIN in self.scopes


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """`token` exists nowhere else: show it now."""

    token: str = field(repr=False)
    key: ApiKey


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys of one revision, to check tokens without the database."""

    secret: bytes = field(repr=False)
    keys: Mapping[str, tuple[ApiKey, str]] = field(repr=False)
    """prefix -> key and stored hash."""

    def authenticate(self, token: str) -> ApiKey:
        """The key of this token; raises InvalidKey in words that tell nothing to who does not hold the token."""
        key, stored = self.keys.get(token_prefix(token), (None, "0" * 64))
        matches = hmac.compare_digest(token_hash(self.secret, token), stored)
        if key is None or not matches:
            raise InvalidKey("Incorrect API key. Check the key, or create a new one in the dashboard.")
        return check_usable(key)


class Keys:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._secret = shared_secret(database, API_KEYS)

    def create(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        actor: str,
        tenant: str = DEFAULT_TENANT,
        expires_at: datetime | None = None,
        token: str | None = None,
        adapters: Iterable[str] | None = None,
        quota: Quota = OPEN,
        may_be_weak: bool = False,
    ) -> CreatedKey:
        """A new key; `token` is for keys chosen by the operator, who may say that a weak one will do; `adapters` as
        ApiKey has it. Raises RegistryError for
        unknown scopes, wrong limits and adapters, InvalidKey for a token that was used before."""
        granted = _check_scopes(scopes)
        names = None if adapters is None else _check_adapters(adapters, granted)
        token = new_token() if token is None else (check_readable if may_be_weak else check_token)(token)
        with self._database.write() as session:
            bump_revision(session)
            _check_unused(session, token)
            row = tables.ApiKey(
                tenant_id=tenant_id(session, tenant),
                prefix=token_prefix(token),
                hash=token_hash(self._secret, token),
                name=check_label(name),
                scopes=granted,
                adapters=names,
                created_by=actor,
                expires_at=expires_at,
            )
            limits = set_quota(row, quota)
            session.add(row)
            session.flush()
            _record(session, actor, "key.create", row, scopes=granted, adapters=names, **limits)
            return CreatedKey(token, _view(row))

    def revoke(self, prefix: str, *, actor: str, tenant: str = DEFAULT_TENANT) -> ApiKey:
        """From the next refresh on the key opens nothing. Raises InvalidKey if the tenant has no such key."""
        with self._database.write() as session:
            bump_revision(session)
            row = _find(session, prefix, tenant)
            if row.revoked_at is None:
                row.revoked_at, row.revoked_by = utc_now(), actor
                _record(session, actor, "key.revoke", row)
            return _view(row)

    def change(
        self,
        prefix: str,
        *,
        actor: str,
        tenant: str = DEFAULT_TENANT,
        quota: Quota | UnsetType = UNSET,
        adapters: Iterable[str] | UnsetType | None = UNSET,
        expires_at: datetime | UnsetType | None = UNSET,
    ) -> ApiKey:
        """What is given takes the place of the old; None: all adapters, no expiry. Raises InvalidKey, RegistryError."""
        with self._database.write() as session:
            bump_revision(session)
            row = _find(session, prefix, tenant)
            if adapters is not UNSET:
                row.adapters = None if adapters is None else _check_adapters(adapters, row.scopes)
                _record(session, actor, "key.adapters", row, adapters=row.adapters)
            if quota is not UNSET:
                _record(session, actor, "key.limit", row, **set_quota(row, quota))
            if expires_at is not UNSET:
                row.expires_at = expires_at
                _record(session, actor, "key.expire", row, expires_at=expires_at and expires_at.isoformat())
            return _view(row)

    def get(self, prefix: str, tenant: str = DEFAULT_TENANT) -> ApiKey:
        """Raises InvalidKey if the tenant has no such key."""
        with self._database.read() as session:
            return _view(_find(session, prefix, tenant))

    def list(self, tenant: str = DEFAULT_TENANT) -> Sequence[ApiKey]:
        """All keys of a tenant, revoked ones too, newest first."""
        query = select(tables.ApiKey).join(tables.Tenant).where(tables.Tenant.name == tenant)
        with self._database.read() as session:
            return [_view(row) for row in session.scalars(query.order_by(tables.ApiKey.id.desc()))]

    def names(self, tenant: str = DEFAULT_TENANT) -> Mapping[str, str]:
        """prefix -> name of every key there ever was."""
        query = select(tables.ApiKey.prefix, tables.ApiKey.name).join(tables.Tenant)
        with self._database.read() as session:
            return dict(session.execute(query.where(tables.Tenant.name == tenant)).all())

    def record_use(self, used: Mapping[str, datetime]) -> None:
        """Note when keys (by prefix) were last used; called now and then with all of them, never per request."""
        with self._database.write() as session:
            for prefix, moment in sorted(used.items()):
                session.execute(update(tables.ApiKey).where(tables.ApiKey.prefix == prefix).values(last_used_at=moment))

    def load_ring(self, session: Session) -> KeyRing:
        """The keys that are not revoked, as this session sees them."""
        query = (
            select(tables.ApiKey).where(tables.ApiKey.revoked_at.is_(None)).options(selectinload(tables.ApiKey.tenant))
        )
        return KeyRing(self._secret, {row.prefix: (_view(row), row.hash) for row in session.scalars(query)})


def check_usable(key: ApiKey) -> ApiKey:
    """The key itself. Raises InvalidKey once it has expired."""
    if key.expires_at is not None and key.expires_at <= utc_now():
        raise InvalidKey(
            f"This API key expired on {key.expires_at:%Y-%m-%d %H:%M} UTC. Create a new one in the dashboard."
        )
    return key


def _check_scopes(scopes: Iterable[str]) -> list[str]:
    granted = sorted(set(scopes))
    if not granted or not set(granted) <= set(SCOPES):
        raise RegistryError(f"A key needs at least one of the scopes {', '.join(SCOPES)}; got {granted}.")
    return granted


def _check_adapters(names: Iterable[str], scopes: Iterable[str]) -> list[str]:
    """Adapters need not exist yet."""
    checked = sorted({check_label(name) for name in names})
    if not 1 <= len(checked) <= MAX_ADAPTERS:
        raise RegistryError(f"A key can name 1 to {MAX_ADAPTERS} adapters, or none to allow all.")
    if ADMIN in scopes:
        raise RegistryError(
            f"A key with the scope {ADMIN} can use all adapters. Name no adapters, or use other scopes."
        )
    return checked


def _check_unused(session: Session, token: str) -> None:
    query = select(tables.ApiKey).where(tables.ApiKey.prefix == token_prefix(token))
    row = session.scalars(query).one_or_none()
    if row is not None:
        state = "was revoked" if row.revoked_at else "already exists"
        raise InvalidKey(f"The API key '{row.name}' ({row.prefix}) {state}. Choose another one.")


def _find(session: Session, prefix: str, tenant: str) -> tables.ApiKey:
    query = (
        select(tables.ApiKey).join(tables.Tenant).where(tables.ApiKey.prefix == prefix, tables.Tenant.name == tenant)
    )
    row = session.scalars(query).one_or_none() if _PREFIX.fullmatch(prefix) else None
    if row is None:
        raise InvalidKey(f"There is no API key {prefix[:32]!a}.")
    return row


def _view(row: tables.ApiKey) -> ApiKey:
    return ApiKey(
        prefix=row.prefix,
        name=row.name,
        tenant=row.tenant.name,
        scopes=frozenset(row.scopes),
        created_at=row.created_at,
        created_by=row.created_by,
        last_used_at=row.last_used_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        adapters=None if row.adapters is None else frozenset(row.adapters),
        quota=quota_of(row),
    )


def _record(session: Session, actor: str, action: str, row: tables.ApiKey, **detail: object) -> None:
    record(session, actor, action, f"key:{row.prefix}", tenant_id=row.tenant_id, name=row.name, **detail)
