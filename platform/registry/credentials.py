"""The first login: an admin password and one inference key, made at the first start and kept in one file.

The file is written before the database, so that a start which dies in between loses nothing: the next one reads it.
"""

import os
import secrets
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from .access.key_format import check_readable, check_token, new_token, token_prefix
from .access.passwords import check_password
from .access.scopes import ADMIN_ROLE, INFERENCE
from .audit import SYSTEM
from .errors import InvalidKey
from .files.artifacts import sync_folder
from .registry import Registry

ADMIN_USER = "admin"
FIRST_KEY = "first key"


class Credentials(msgspec.Struct, frozen=True):
    """None: it was set earlier and is known to its owner only."""

    admin_user: str = ADMIN_USER
    admin_password: str | None = None
    api_key: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(admin_user={self.admin_user!r})"


def ensure_credentials(
    registry: Registry,
    path: Path,
    admin_password: str | None = None,
    api_keys: Sequence[str] = (),
    may_be_weak: bool = False,
) -> Credentials:
    """Make sure that there are an admin and an inference key, and keep what is known of them in `path`, mode 0600.

    `admin_password` and `api_keys` are the operator's; when one changes, the old one stops working. The user `admin` is
    made where the tenant has no admin at all; one that was removed while others stay is not made again.
    `may_be_weak`: the keys. Raises WeakSecret, and ValueError for a file that is not ours.
    """
    known, check = read_credentials(path), check_readable if may_be_weak else check_token
    wanted = Credentials(
        admin_password=_password(registry, known.admin_password, admin_password),
        api_key=_api_key(registry, known.api_key, [check(key) for key in api_keys]),
    )
    if wanted != known or not path.exists():
        _write(path, wanted)
    _apply(registry, wanted, api_keys)
    return wanted


def read_credentials(path: Path) -> Credentials:
    """What the file says; nothing known when there is no file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except FileNotFoundError:
        return Credentials()
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}. Fix it, or delete it; the logins stay valid.") from error


def still_valid(registry: Registry, known: Credentials) -> Credentials:
    """What of it still lets somebody in: people change passwords and revoke keys."""
    password, key = known.admin_password, known.api_key
    return Credentials(
        admin_user=known.admin_user,
        admin_password=password if password and registry.users.verify(known.admin_user, password) else None,
        api_key=key if key and _is_valid(registry, key) else None,
    )


def _password(registry: Registry, known: str | None, given: str | None) -> str | None:
    if given is not None:
        check_password(given)
    if registry.users.get(ADMIN_USER) is None:
        others = any(user.role == ADMIN_ROLE for user in registry.users.list())
        return None if others else given or known or secrets.token_urlsafe(12)
    if given is not None:
        return given
    return known if known and registry.users.verify(ADMIN_USER, known) else None


def _api_key(registry: Registry, known: str | None, given: Sequence[str]) -> str | None:
    if given:
        return given[0]
    if not registry.keys.list():
        return known or new_token()
    return known if known and _is_valid(registry, known) else None


def _apply(registry: Registry, wanted: Credentials, api_keys: Sequence[str]) -> None:
    if wanted.admin_password and not registry.users.verify(ADMIN_USER, wanted.admin_password):
        registry.users.set_password(ADMIN_USER, wanted.admin_password, actor=SYSTEM)
    keys = api_keys or ([wanted.api_key] if wanted.api_key else [])
    new = [key for key in keys if not _is_valid(registry, key)]
    if new or api_keys:
        _revoke_first_keys(registry, {token_prefix(key) for key in keys})
    for key in new:
        registry.keys.create(FIRST_KEY, [INFERENCE], actor=SYSTEM, token=key, may_be_weak=bool(api_keys))
    registry.snapshots.refresh()


def _is_valid(registry: Registry, token: str) -> bool:
    registry.snapshots.refresh()
    try:
        registry.snapshots.current.authenticate(token)
    except InvalidKey:
        return False
    return True


def _revoke_first_keys(registry: Registry, stay: Collection[str]) -> None:
    """But for those with these prefixes."""
    for key in registry.keys.list():
        is_first = key.name == FIRST_KEY and key.created_by == SYSTEM and key.revoked_at is None
        if is_first and key.prefix not in stay:
            registry.keys.revoke(key.prefix, actor=SYSTEM)


def _write(path: Path, credentials: Credentials) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(credentials)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).rename(path)
    sync_folder(path.parent)
