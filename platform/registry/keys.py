"""API keys: `lp-<prefix>_<secret>`, shown once, stored as an HMAC and found by the prefix."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session, selectinload

from . import tables
from .audit import record
from .database import Database
from .errors import InvalidKey, RegistryError, WeakSecret
from .generation import bump_generation
from .names import check_label
from .shared_secrets import API_KEYS, shared_secret
from .tables import DEFAULT_TENANT, utc_now
from .tenants import tenant_id

INFERENCE, ADAPTERS, ADMIN = "inference", "adapters", "admin"
SCOPES = (INFERENCE, ADAPTERS, ADMIN)
"""inference: use models; adapters: upload and manage them; admin: everything, keys included."""

MIN_TOKEN_LENGTH = 12
_PREFIX = re.compile(r"[0-9a-fx]{12}")
_TOKEN = re.compile(r"lp-([0-9a-f]{12})_[\w-]+", re.ASCII)


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

    def allows(self, scope: str) -> bool:
        return scope in self.scopes or ADMIN in self.scopes


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """`token` exists nowhere else: show it now."""

    token: str = field(repr=False)
    key: ApiKey


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys of one generation, to check tokens without the database."""

    secret: bytes = field(repr=False)
    keys: Mapping[str, tuple[ApiKey, str]] = field(repr=False)
    """prefix -> key and stored hash."""

    def authenticate(self, token: str) -> ApiKey:
        """The key of this token; raises InvalidKey in words that tell nothing to who does not hold the token."""
        key, stored = self.keys.get(token_prefix(token), (None, "0" * 64))
        matches = hmac.compare_digest(token_hash(self.secret, token), stored)
        if key is None or not matches:
            raise InvalidKey("Incorrect API key. Check the key, or create a new one in the dashboard.")
        return _usable(key)


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
    ) -> CreatedKey:
        """A new key; `token` is for keys chosen by the operator. Raises RegistryError for unknown scopes,
        InvalidKey for a token that was used before."""
        granted = _check_scopes(scopes)
        token = new_token() if token is None else check_token(token)
        with self._database.write() as session:
            bump_generation(session)
            _check_unused(session, token)
            row = tables.ApiKey(
                tenant_id=tenant_id(session, tenant),
                prefix=token_prefix(token),
                hash=token_hash(self._secret, token),
                name=check_label(name),
                scopes=granted,
                created_by=actor,
                expires_at=expires_at,
            )
            session.add(row)
            record(
                session, actor, "key.create", f"key:{row.prefix}", tenant_id=row.tenant_id, name=name, scopes=granted
            )
            session.flush()
            return CreatedKey(token, _view(row))

    def revoke(self, prefix: str, *, actor: str, tenant: str = DEFAULT_TENANT) -> ApiKey:
        """From the next refresh on the key opens nothing. Raises InvalidKey if the tenant has no such key."""
        with self._database.write() as session:
            bump_generation(session)
            row = _find(session, prefix, tenant)
            if row.revoked_at is None:
                row.revoked_at, row.revoked_by = utc_now(), actor
                record(session, actor, "key.revoke", f"key:{prefix}", tenant_id=row.tenant_id, name=row.name)
            return _view(row)

    def list(self, tenant: str = DEFAULT_TENANT) -> Sequence[ApiKey]:
        """All keys of a tenant, revoked ones too, newest first."""
        query = select(tables.ApiKey).join(tables.Tenant).where(tables.Tenant.name == tenant)
        with self._database.read() as session:
            return [_view(row) for row in session.scalars(query.order_by(tables.ApiKey.id.desc()))]

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


def new_token() -> str:
    return f"lp-{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


def check_token(token: str) -> str:
    """A token chosen by the operator; raises WeakSecret unless it is long enough and fits into a header."""
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise WeakSecret(
            f"The API key must have at least {MIN_TOKEN_LENGTH} ASCII characters and no space. "
            "Choose a longer one, for example with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token


def token_prefix(token: str) -> str:
    """The public part. A token chosen by the operator has none: a short hash stands in."""
    match = _TOKEN.fullmatch(token)
    return match[1] if match else "x" + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:11]


def token_hash(secret: bytes, token: str) -> str:
    return hmac.digest(secret, token.encode("utf-8", "surrogatepass"), "sha256").hex()


def _usable(key: ApiKey) -> ApiKey:
    if key.expires_at is not None and key.expires_at <= utc_now():
        raise InvalidKey(
            f"This API key expired on {key.expires_at:%Y-%m-%d %H:%M} UTC. Create a new one in the dashboard."
        )
    return key


def _check_scopes(scopes: Iterable[str]) -> list[str]:
    granted = sorted(set(scopes))
    if not granted or not set(granted) <= set(SCOPES):
        raise RegistryError(f"A key needs one or more of the scopes {', '.join(SCOPES)}; got {granted}.")
    return granted


def _check_unused(session: Session, token: str) -> None:
    query = select(tables.ApiKey).where(tables.ApiKey.prefix == token_prefix(token))
    row = session.scalars(query).one_or_none()
    if row is not None:
        state = "was revoked" if row.revoked_at else "exists already"
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
    )
