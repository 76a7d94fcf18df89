"""Options at the end of a PostgreSQL URL, as libpq defines them and clouds hand them out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

CERTIFICATES: Final = ("sslrootcert", "sslcert", "sslkey")
OPTIONS: Final = ("sslmode", *CERTIFICATES, "channel_binding", "application_name", "options")
VALUES: Final = {
    "sslmode": ("disable", "prefer", "require", "verify-ca", "verify-full"),
    "channel_binding": ("prefer", "require"),
}
SYSTEM: Final = "system"
"""Value of sslrootcert that names the machine's own certificate authorities."""


def checked_options(query: Mapping[str, Any]) -> dict[str, Any]:
    """With TLS verified where certificates are named. ValueError names an option or a value that is not supported."""
    for name, value in query.items():
        if name not in OPTIONS:
            raise ValueError(f"database_url has the option {name!r}, which is not supported. Use {_list(OPTIONS)}.")
        if name in VALUES and value not in VALUES[name]:
            raise ValueError(f"database_url has {name}={value}, which is not supported. Use {_list(VALUES[name])}.")
        if name in CERTIFICATES and value != SYSTEM and not Path(value).is_file():
            raise ValueError(f"database_url names a certificate that cannot be read ({name}={value}).")
    options = dict(query)
    if any(name in query for name in CERTIFICATES):
        options.setdefault("sslmode", "verify-full")
    if options.get("sslmode") == "verify-full":
        options.setdefault("sslrootcert", SYSTEM)
    return options


def _list(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
