"""Options at the end of a PostgreSQL URL, as libpq defines them and clouds hand them out, in our driver's terms."""

import ssl
from collections.abc import Mapping
from typing import Any, Final

OPTIONS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey", "channel_binding", "application_name", "options")
SSL_MODES: Final = ("disable", "prefer", "require", "verify-ca", "verify-full")
CHANNEL_BINDINGS: Final = ("prefer", "require")
SYSTEM: Final = "system"
"""Value of sslrootcert that names the machine's own certificate authorities."""


def driver_arguments(query: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for pg8000's connect. ValueError names an option or a value that is not supported."""
    for name in query:
        if name not in OPTIONS:
            raise ValueError(f"database_url has the option {name!r}, which is not supported. Use {_list(OPTIONS)}.")
    _check("channel_binding", query.get("channel_binding", "prefer"), CHANNEL_BINDINGS)
    arguments: dict[str, Any] = {"ssl_context": _ssl_context(query)}
    if "application_name" in query:
        arguments["application_name"] = query["application_name"]
    if "options" in query:
        arguments["startup_params"] = {"options": query["options"]}
    return arguments


def check_channel_binding(connection: Any) -> None:
    """Refuse a connection of pg8000 whose login was not bound to its TLS channel."""
    mechanism = getattr(getattr(connection, "auth", None), "mechanism_name", "none")
    if not mechanism.endswith("-PLUS"):
        connection.close()
        raise ValueError(f"database_url asks for channel_binding=require, but the server's login was {mechanism}.")


def _ssl_context(query: Mapping[str, Any]) -> ssl.SSLContext | bool | None:
    """False: never TLS; None: unverified TLS where the server has it, as libpq does when nothing is asked for."""
    certificates = [name for name in ("sslrootcert", "sslcert", "sslkey") if name in query]
    mode = query.get("sslmode", "verify-full" if certificates else "prefer")
    _check("sslmode", mode, SSL_MODES)
    if mode in ("disable", "prefer"):
        return None if mode == "prefer" else False
    try:
        return _make_context(mode, query)
    except OSError as error:
        files = ", ".join(f"{name}={query[name]}" for name in certificates)
        raise ValueError(f"database_url names certificates that cannot be read ({files}): {error}") from None


def _make_context(mode: str, query: Mapping[str, Any]) -> ssl.SSLContext:
    """As libpq has it, `require` checks the certificate only when a root certificate is named."""
    root = query.get("sslrootcert")
    context = ssl.create_default_context(cafile=None if root == SYSTEM else root)
    context.check_hostname = mode == "verify-full"
    if mode == "require" and root is None:
        context.verify_mode = ssl.CERT_NONE
    if "sslcert" in query:
        context.load_cert_chain(query["sslcert"], query.get("sslkey"))
    return context


def _check(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"database_url has {name}={value}, which is not supported. Use {_list(allowed)}.")


def _list(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
