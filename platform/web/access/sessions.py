"""Sessions: the dashboard's login as a cookie that names a row. A logout or a changed password ends them everywhere."""

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from starlette.responses import Response

from loraplex.registry.access import sessions
from loraplex.registry.access.users import User, Users
from loraplex.registry.audit import AuditLog
from loraplex.registry.database.tables import DEFAULT_TENANT
from loraplex.registry.errors import TenantDisabled

from ..http.errors import forbidden
from .login_notes import LoginNotes
from .login_throttle import LoginThrottle

COOKIE: Final = "loraplex_session"
NOBODY: Final = "user:unknown"
"""In the audit log: whoever tries a name that no user has. The name itself may be a password that was mistyped."""


@dataclass(frozen=True, slots=True)
class Session:
    user: str
    tenant: str
    role: str
    csrf_token: str = field(repr=False)
    cookie: str = field(repr=False)


class Sessions:
    """`hours` is how long a login is good for. `log_in`, `read` and `end` block."""

    def __init__(self, users: Users, rows: sessions.Sessions, audit: AuditLog, hours: float) -> None:
        self._users = users
        self._rows = rows
        self._audit = audit
        self._notes = LoginNotes()
        self._lifetime = timedelta(hours=hours)
        self._guesses = LoginThrottle()

    def log_in(self, login: str, password: str, address: str) -> str | None:
        """The cookie's value, or None when login or password is wrong. ApiError 429 after too many wrong ones from this
        address, 403 where they are right and the tenant is disabled.

        `login` is a user's name, in another tenant than `default` with the tenant in front: acme/bob.
        """
        tenant, name = _parts(login)
        user = self._verified(name, password, tenant, address)
        if user is None:
            self._note_failure(name, tenant, address)
            return None
        detail = self._notes.detail_of(user.tenant, True, address)
        try:
            return self._rows.begin(user, self._lifetime, detail)
        except TenantDisabled as error:
            raise forbidden(str(error)) from None

    def check_guesses(self, login: str, address: str) -> None:
        """ApiError 429 where `log_in` would raise it, so that a guesser does not even wait for a check."""
        tenant, name = _parts(login)
        self._guesses.check(_account(tenant, name), address)

    def confirm(self, session: Session, password: str, address: str) -> bool:
        """Whether it is the password of who is logged in. ApiError 429 after too many wrong ones."""
        return self._verified(session.user, password, session.tenant, address) is not None

    def read(self, cookie: str) -> Session | None:
        """The session of a cookie that is ours, fresh and not ended."""
        user = self._rows.find(cookie)
        return None if user is None else Session(user.name, user.tenant, user.role, _csrf_token(cookie), cookie)

    def end(self, session: Session) -> None:
        """Log out: the session's cookie is refused from now on, whoever holds a copy of it."""
        self._rows.end(session.cookie)

    def keep(self, response: Response, cookie: str, secure: bool) -> None:
        """Give the cookie to the browser. `secure`: the page came over HTTPS."""
        seconds = round(self._lifetime.total_seconds())
        response.set_cookie(COOKIE, cookie, max_age=seconds, httponly=True, samesite="strict", secure=secure)

    def forget(self, response: Response) -> None:
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")

    def _note_failure(self, name: str, tenant: str, address: str) -> None:
        """In the audit log of the user's tenant; of names that nobody has, in that of the server itself."""
        known = self._users.get(name, tenant) is not None
        detail = self._notes.detail_of(tenant if known else "", False, address)
        if detail is not None:
            who, owner = (f"user:{name}", tenant) if known else (NOBODY, None)
            self._audit.note(who, "user.login_failed", who, owner, **detail)

    def _verified(self, name: str, password: str, tenant: str, address: str) -> User | None:
        account = _account(tenant, name)
        began, wrong = self._guesses.begin(account, address), False
        try:
            user = self._users.verify(name, password, tenant)
            wrong = user is None
        finally:
            if not wrong:
                self._guesses.take_back(account, address, began)
        return user


def login_of(name: str, tenant: str) -> str:
    """What to type as the user at the login."""
    return name if tenant == DEFAULT_TENANT else f"{tenant}/{name}"


def _parts(login: str) -> tuple[str, str]:
    """Tenant and name."""
    tenant, _, name = login.rpartition("/")
    return tenant or DEFAULT_TENANT, name


def _account(tenant: str, name: str) -> str:
    return f"{tenant}/{name}"


def _csrf_token(cookie: str) -> str:
    """Pages show it, and the cookie cannot be found from it."""
    return hashlib.sha256(f"loraplex csrf {cookie}".encode("utf-8", "surrogatepass")).hexdigest()
