"""What an API key looks like: `lp-<prefix>_<secret>`, kept as an HMAC and found by the prefix."""

import hashlib
import hmac
import re
import secrets

from ..errors import WeakSecret

MIN_TOKEN_LENGTH = 12
_TOKEN = re.compile(r"lp-([0-9a-f]{12})_[\w-]+", re.ASCII)


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


def check_readable(token: str) -> str:
    """A token that fits into a header, however short; raises WeakSecret."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise WeakSecret("The API key must have ASCII characters and no space. Choose a longer one.")
    return token


def token_prefix(token: str) -> str:
    """The public part. A token chosen by the operator has none: a short hash stands in."""
    match = _TOKEN.fullmatch(token)
    return match[1] if match else "x" + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:11]


def token_hash(secret: bytes, token: str) -> str:
    return hmac.digest(secret, token.encode("utf-8", "surrogatepass"), "sha256").hex()
