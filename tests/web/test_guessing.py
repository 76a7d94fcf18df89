"""Guesses: limits by account and address, a minute later, in bounded memory."""

import pytest

from loraplex.web.errors import ApiError
from loraplex.web.guessing import MOST, MOST_AT_AN_ACCOUNT, REMEMBERED, SECONDS, Guesses


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(guesses: Guesses, account: str, address: str) -> str | None:
    """For how many seconds, as the header says."""
    try:
        guesses.refuse_too_many(account, address)
    except ApiError as error:
        assert error.status == 429
        return dict(error.headers or {})["retry-after"]
    return None


def test_ten_at_one_account_from_one_address() -> None:
    clock = Clock()
    guesses = Guesses(clock)
    for second in range(MOST_AT_AN_ACCOUNT):
        assert refused(guesses, "default/admin", "a") is None
        clock.now = float(second)
        guesses.count("default/admin", "a")
    assert refused(guesses, "default/admin", "a") == str(round(SECONDS - clock.now))
    assert refused(guesses, "default/admin", "b") is None
    assert refused(guesses, "acme/admin", "a") is None
    clock.now = SECONDS
    assert refused(guesses, "default/admin", "a") is None


@pytest.mark.parametrize("many", ["addresses", "accounts"])
def test_a_hundred_at_one_account_or_from_one_address(many: str) -> None:
    guesses = Guesses(Clock())
    for number in range(MOST):
        pair = ("default/admin", f"a{number}") if many == "addresses" else (f"default/u{number}", "a")
        assert refused(guesses, *pair) is None
        guesses.count(*pair)
    assert refused(guesses, *(("default/admin", "new") if many == "addresses" else ("default/new", "a"))) == "60"
    assert refused(guesses, "default/new", "new") is None


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    guesses = Guesses(Clock())
    for number in range(REMEMBERED):
        guesses.count(f"default/u{number}", f"a{number}")
    assert len(guesses._wrong) == REMEMBERED
    for _ in range(MOST_AT_AN_ACCOUNT):
        guesses.count("default/admin", "a")
    assert refused(guesses, "default/admin", "a") == "60"
