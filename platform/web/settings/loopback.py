"""What may be open on an address that only this machine reaches."""

import ipaddress
import logging
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from loraplex.registry.access.key_format import check_token

from .secrets import refuse_weak

if TYPE_CHECKING:
    from .settings import Settings

NAMES: Final = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})

logger = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """An address or a name that only programs of this machine reach."""
    if host.lower().rstrip(".") in NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_keys(settings: "Settings") -> None:
    """ValueError for keys that are weak where others reach the server."""
    for key in settings.api_keys if settings.api_key is None else settings.api_keys or ("",):
        if not is_loopback(settings.host):
            refuse_weak("api_key", SecretStr(key), check_token)
        elif not key.isascii() or not key.isprintable() or not key:
            raise ValueError("api_key: it must have ASCII characters alone. Choose a longer one")


def check_open(settings: "Settings") -> None:
    """ValueError where anybody could use the server without a key."""
    if settings.no_api_key and not is_loopback(settings.host):
        raise ValueError(
            f"no_api_key: everybody who reaches {settings.host} could use the server. Leave it out, or listen on "
            "127.0.0.1 and let a proxy check who asks"
        )


def warn_of_open(settings: "Settings") -> None:
    """In the log, at the start."""
    if settings.no_api_key:
        logger.warning("no_api_key: every program of this machine can use the models; the dashboard asks for a login")
    elif settings.has_weak_key:
        logger.warning(
            "api_key is easily guessed. It is accepted on %s, which only this machine reaches; for another address "
            "make one with: openssl rand -hex 24",
            settings.host,
        )
