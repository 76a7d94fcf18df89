"""Sessions: the dashboard's login as a signed cookie. A changed password ends every session made before.

A logout is remembered by this process alone, until the cookie would have expired: after a restart of the server,
a copy of the cookie that was made before the logout is good again for the rest of its hours.
"""

import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from itsdangerous import BadData, URLSafeTimedSerializer
from starlette.responses import Response

from loraplex.registry.tables import DEFAULT_TENANT
from loraplex.registry.users import User, Users

from .errors import ApiError

COOKIE: Final = "loraplex_session"
MAX_FAILURES: Final = 10
FAILURE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Session:
    user: str
    csrf_token: str
    tenant: str = DEFAULT_TENANT


class Sessions:
    """`secret` signs the cookies; `hours` is how long one is good for. `log_in` and `read` block, `end` does not."""

    def __init__(self, users: Users, secret: bytes, hours: float) -> None:
        self._users = users
        self._serializer = URLSafeTimedSerializer(secret, salt="loraplex.session")
        self._seconds = round(hours * 3600)
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
        self._ended: dict[str, float] = {}
        """CSRF token of a session that was logged out -> the moment from which its cookie is too old anyway."""

    def log_in(self, name: str, password: str) -> str | None:
        """The cookie's value, or None when name or password is wrong. ApiError 429 after too many failures."""
        self._refuse_guessing()
        user = self._users.verify(name, password)
        if user is None:
            self._failures.append(time.monotonic())
            return None
        return self._serializer.dumps([user.name, _password_mark(user), secrets.token_urlsafe(24)])

    def read(self, cookie: str) -> Session | None:
        """The session of a cookie that is ours, fresh, not logged out, of a user whose password is still the same."""
        try:
            name, mark, csrf_token = self._serializer.loads(cookie, max_age=self._seconds)
        except (BadData, ValueError, TypeError):
            return None
        if csrf_token in self._ended:
            return None
        user = self._users.get(name)
        return Session(name, csrf_token) if user is not None and _password_mark(user) == mark else None

    def end(self, session: Session) -> None:
        """Log out: the session's cookie is refused from now on, whoever holds a copy of it."""
        now = time.monotonic()
        self._ended = {token: until for token, until in self._ended.items() if until > now}
        self._ended[session.csrf_token] = now + self._seconds + 1

    def keep(self, response: Response, cookie: str, secure: bool) -> None:
        """Give the cookie to the browser. `secure`: the page came over HTTPS."""
        response.set_cookie(COOKIE, cookie, max_age=self._seconds, httponly=True, samesite="strict", secure=secure)

    def forget(self, response: Response) -> None:
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")

    def _refuse_guessing(self) -> None:
        if len(self._failures) == MAX_FAILURES and time.monotonic() - self._failures[0] < FAILURE_SECONDS:
            headers = {"retry-after": str(round(FAILURE_SECONDS))}
            raise ApiError(429, "Too many wrong passwords. Wait a minute, then try again.", headers=headers)


def _password_mark(user: User) -> str:
    return user.password_changed_at.isoformat()
