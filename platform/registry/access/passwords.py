"""Which passwords are taken. Settings ask before anything of the database is imported."""

from typing import Final

from ..errors import WeakSecret

MIN_PASSWORD_LENGTH: Final = 8


def check_password(password: str) -> str:
    if len(password) < MIN_PASSWORD_LENGTH or password != password.strip() or not password.isprintable():
        raise WeakSecret(
            f"The password must have at least {MIN_PASSWORD_LENGTH} printable characters and no space at "
            "either end. Choose a longer one."
        )
    return password
