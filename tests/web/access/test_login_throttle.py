"""LoginThrottle: limits by account and address, a minute later, in bounded memory."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, cast
from unittest.mock import Mock

import pytest

from loraplex.registry.access.users import User
from loraplex.web.access.login_notes import FAILED_AN_HOUR, HOUR, LoginNotes
from loraplex.web.access.login_throttle import MOST, MOST_AT_AN_ACCOUNT, REMEMBERED, SECONDS, LoginThrottle
from loraplex.web.access.sessions import Sessions
from loraplex.web.http.errors import ApiError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(guesses: LoginThrottle, account: str, address: str) -> str | None:
    """For how many seconds, as the header says; else a wrong one more is counted."""
    try:
        guesses.begin(account, address)
    except ApiError as error:
        assert error.status == 429
        return dict(error.headers or {})["retry-after"]
    return None


def test_ten_at_one_account_from_one_address() -> None:
    clock = Clock()
    guesses = LoginThrottle(clock)
    for second in range(MOST_AT_AN_ACCOUNT):
        clock.now = float(second)
        assert refused(guesses, "default/admin", "a") is None
    assert refused(guesses, "default/admin", "a") == str(round(SECONDS - clock.now))
    assert refused(guesses, "default/admin", "b") is None
    assert refused(guesses, "acme/admin", "a") is None
    clock.now = SECONDS
    assert refused(guesses, "default/admin", "a") is None


@pytest.mark.parametrize("many", ["addresses", "accounts"])
def test_a_hundred_at_one_account_or_from_one_address(many: str) -> None:
    guesses = LoginThrottle(Clock())
    for number in range(MOST):
        pair = ("default/admin", f"a{number}") if many == "addresses" else (f"default/u{number}", "a")
        assert refused(guesses, *pair) is None
    assert refused(guesses, *(("default/admin", "new") if many == "addresses" else ("default/new", "a"))) == "60"
    assert refused(guesses, "default/new", "new") is None


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    guesses = LoginThrottle(Clock())
    for number in range(REMEMBERED):
        assert refused(guesses, f"default/u{number}", f"a{number}") is None
    assert len(guesses._wrong) == REMEMBERED
    for _ in range(MOST_AT_AN_ACCOUNT):
        assert refused(guesses, "default/admin", "a") is None
    assert refused(guesses, "default/admin", "a") == "60"


def test_a_right_one_is_taken_back() -> None:
    guesses = LoginThrottle(Clock())
    for _ in range(MOST + 1):
        guesses.take_back("default/admin", "a", guesses.begin("default/admin", "a"))
    for _ in range(MOST_AT_AN_ACCOUNT):
        assert refused(guesses, "default/admin", "a") is None
    assert refused(guesses, "default/admin", "a") == "60"


class SlowUsers:
    """Nobody's password is checked before as many checks are under way as may be."""

    def __init__(self) -> None:
        self.checked = 0
        self._all = Barrier(MOST_AT_AN_ACCOUNT)

    def get(self, name: str, tenant: str) -> None:
        """Nobody is known by name here."""

    def verify(self, name: str, password: str, tenant: str) -> User | None:
        self.checked += 1
        self._all.wait(timeout=30)
        if password == "unreachable":
            raise OSError("no database")
        return None


def log_in_at_once(sessions: Sessions, password: str, times: int) -> list[object]:
    def log_in(_: int) -> object:
        try:
            return sessions.log_in("admin", password, address="a")
        except (ApiError, OSError) as error:
            return getattr(error, "status", error)

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(log_in, range(times)))


def test_many_at_once_are_no_way_around_the_limit() -> None:
    users = SlowUsers()
    sessions = Sessions(cast(Any, users), cast(Any, None), cast(Any, Mock()), hours=1)
    answers = log_in_at_once(sessions, "wrong", 3 * MOST_AT_AN_ACCOUNT)
    assert sorted(map(str, answers)) == ["429"] * (2 * MOST_AT_AN_ACCOUNT) + ["None"] * MOST_AT_AN_ACCOUNT
    assert users.checked == MOST_AT_AN_ACCOUNT


def test_a_password_that_could_not_be_checked_is_no_guess() -> None:
    sessions = Sessions(cast(Any, SlowUsers()), cast(Any, None), cast(Any, Mock()), hours=1)
    for _ in range(2):
        assert all(isinstance(one, OSError) for one in log_in_at_once(sessions, "unreachable", MOST_AT_AN_ACCOUNT))


def test_failed_logins_cannot_flood_the_audit_log() -> None:
    """What is left out is counted in the next row; one tenant's failures leave room for another's."""
    clock = Clock()
    notes = LoginNotes(clock)
    written = [notes.detail_of("acme", False, "a") for _ in range(500)]
    assert [detail for detail in written if detail is not None] == [{"address": "a"}] * FAILED_AN_HOUR
    assert notes.detail_of("rival", False, "a") is not None and notes.detail_of("acme", True, "a") is not None
    clock.now += HOUR / FAILED_AN_HOUR
    assert notes.detail_of("acme", False, "b") == {"address": "b", "more_before": 500 - FAILED_AN_HOUR}
    assert notes.detail_of("acme", False, "b") is None
