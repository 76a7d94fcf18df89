"""Secrets among the settings: which are refused, and what is shown instead of them."""

import re
from collections.abc import Callable

from pydantic import SecretStr

WEAK_WORDS = (
    "password",
    "passw0rd",
    "changeme",
    "change-me",
    "administrator",
    "loraplex",
    "12345678",
    "sk-1234",
    "qwertyui",
)
SECRET_OPTION = re.compile(r"([?&]\w*(?:password|passwd|secret|token)=)[^&]*", re.IGNORECASE)
MASK = "********"


def refuse_weak(name: str, secret: SecretStr | None, check: Callable[[str], str]) -> None:
    if secret is None:
        return
    text = check(secret.get_secret_value())
    if any(text.lower().startswith(word) for word in WEAK_WORDS) or len(set(text)) < 5:
        raise ValueError(
            f"{name} is easily guessed. Leave LORAPLEX_{name.upper()} unset and one is made at the first start, "
            "or make one with: openssl rand -hex 24"
        )


def mask_url(url: str) -> str:
    """The URL without passwords, whether they stand before the host or among the options."""
    scheme, separator, rest = url.partition("://")
    rest = SECRET_OPTION.sub(rf"\g<1>{MASK}", rest)
    credentials, at, location = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    return f"{scheme}{separator}{user}{colon}{MASK if colon else ''}{at}{location}"
