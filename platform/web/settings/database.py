"""The database among the settings: which URLs are refused, and the password that comes from elsewhere."""

from typing import Final

from sqlalchemy.engine import URL

from loraplex.registry.database.database import SUPPORTED, parse_url
from loraplex.registry.database.url_options import checked_options

from .secrets import MAKE_ONE, is_sample

POSTGRESQL: Final = "postgresql"


def check_database(url: str, password: str | None) -> None:
    """ValueError for what cannot work or is easily guessed. `password`: of `database_password`."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == POSTGRESQL:
        _check_server(parsed, password)
        return
    if password is not None:
        reason = "database_password is set, but database_url does not name a PostgreSQL server that uses it"
        raise ValueError(f"{reason}. Leave it out, or name that server")
    if not parsed.database or parsed.database == ":memory:":
        raise ValueError(f"database_url: a SQLite database needs a file, or nothing is kept. Use {SUPPORTED}")


def with_password(url: str, password: str) -> str:
    """The URL with the password that came from elsewhere."""
    return parse_url(url).set(password=password).render_as_string(hide_password=False)


def _check_server(url: URL, password: str | None) -> None:
    if not url.host or not url.database:
        raise ValueError(f"database_url names no {'database' if url.host else 'host'}. Use {SUPPORTED}")
    if url.password is not None and password is not None:
        raise ValueError("database_password and database_url both contain a password: use one of them")
    checked_options(url.query)
    given = password if password is not None else url.password
    if given is not None and (is_sample(str(given)) or given in (url.username, url.database)):
        setting = "database_url" if password is None else "database_password"
        raise ValueError(
            f"{setting}: the password is easily guessed. Change the password of the database user; {MAKE_ONE}"
        )
