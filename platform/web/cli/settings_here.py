"""Settings for words that work in a process of their own: by default those of the server on the data folder."""

from collections.abc import Mapping
from typing import Any, Final

from ..settings.running_server import RunningServer, running_server
from ..settings.secrets import MASK, SECRETS, mask_url
from ..settings.settings import Settings
from .api_client import client_of
from .server_here import answers

NOT_TAKEN_OVER: Final = {*SECRETS, "admin_password_file", "api_key_file"}
"""The server shows no secret, and needs none here."""


def settings_here(**flags: Any) -> Settings:
    """Flags win, then what the running server was given, then environment and file as for a server that starts."""
    settings = Settings(**flags)
    running = running_server(settings.data_dir)
    if running is None:
        return settings
    served = {"model": running.model, "served_name": running.base, "data_dir": settings.data_dir}
    if not answers(running):
        return Settings(**served | flags)
    return _as_served(running, served, flags)


def _as_served(running: RunningServer, served: Mapping[str, Any], flags: Mapping[str, Any]) -> Settings:
    """ValueError where the server's database is another than the one that is named here."""
    with client_of(running.url, running.key, direct=True) as client:
        rows = client.ask("GET", "/api/v1/settings")["data"]
    given = {row["name"]: row["given"] for row in rows if row["name"] not in NOT_TAKEN_OVER}
    url = given["database_url"]
    if MASK in url:
        del given["database_url"]
    settings = Settings(**{**given, **served, **flags})
    if "database_url" not in flags and mask_url(settings.database) != url:
        raise ValueError(
            f"the server on {settings.data_dir} uses the database {url} and does not reveal its password. Set "
            "LORAPLEX_DATABASE_URL to the server's value"
        )
    return settings
