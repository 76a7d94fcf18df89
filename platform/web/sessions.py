"""Sessions: the dashboard's login as a cookie that names a row. A logout or a changed password ends them everywhere."""

import hashlib
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from starlette.responses import Response

from loraplex.registry import sessions
from loraplex.registry.tables import DEFAULT_TENANT
from loraplex.registry.users import User, Users

from .errors import ApiError

COOKIE: Final = "loraplex_session"
MAX_FAILURES: Final = 10
FAILURE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Session:
    user: str
    tenant: str
    role: str
    csrf_token: str = field(repr=False)
    cookie: str = field(repr=False)


class Sessions:
    """`hours` is how long a login is good for. `log_in`, `read` and `end` block."""

    def __init__(self, users: Users, rows: sessions.Sessions, hours: float) -> None:
        self._users = users
        self._rows = rows
        self._lifetime = timedelta(hours=hours)
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)

    def log_in(self, login: str, password: str) -> str | None:
        """The cookie's value, or None when login or password is wrong. ApiError 429 after too many failures.

        `login` is a user's name, in another tenant than `default` with the tenant in front: acme/bob.
        """
        tenant, _, name = login.rpartition("/")
        user = self._verified(name, password, tenant or DEFAULT_TENANT)
        return None if user is None else self._rows.begin(user, self._lifetime)

    def confirm(self, session: Session, password: str) -> bool:
        """Whether it is the password of who is logged in. ApiError 429 after too many failures."""
        return self._verified(session.user, password, session.tenant) is not None

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

    def _verified(self, name: str, password: str, tenant: str) -> User | None:
        self._refuse_guessing()
        user = self._users.verify(name, password, tenant)
        if user is None:
            self._failures.append(time.monotonic())
        return user

    def _refuse_guessing(self) -> None:
        if len(self._failures) == MAX_FAILURES and time.monotonic() - self._failures[0] < FAILURE_SECONDS:
            headers = {"retry-after": str(round(FAILURE_SECONDS))}
            raise ApiError(429, "Too many wrong passwords. Wait a minute, then try again.", headers=headers)


def login_of(name: str, tenant: str) -> str:
    """What to type as the user at the login."""
    return name if tenant == DEFAULT_TENANT else f"{tenant}/{name}"


def _csrf_token(cookie: str) -> str:
    """Pages show it, and the cookie cannot be found from it."""
    return hashlib.sha256(f"loraplex csrf {cookie}".encode("utf-8", "surrogatepass")).hexdigest()
