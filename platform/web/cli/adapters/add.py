"""`loraplex adapters add`: an adapter's folder becomes a version, with or without a running server."""

from pathlib import Path

from rich.console import Console

from ...settings.settings import Settings
from ..admin_api import AdminApi, with_api
from ..output import Json
from ..settings_here import settings_here
from .activation import Activate, Percent, ShareBy, activation_of
from .push import send_folder


@with_api
def add(
    api: AdminApi,
    name: str,
    folder: Path,
    activate: Activate = "",
    percent: Percent = 10,
    share_by: ShareBy = "request",
    as_json: Json = False,
) -> None:
    """Check the adapter in FOLDER (PEFT layout) and register it as NAME, with or without a running server."""
    activation = activation_of(activate, percent, share_by)
    if not api.server:
        _tell_base(settings_here())
    send_folder(api, folder, name, as_json, activation)


def _tell_base(settings: Settings) -> None:
    """On standard error, so that JSON can be piped."""
    words = f"Checked against the model {settings.model}, without a server (data folder {settings.data_dir})."
    Console(stderr=True, highlight=False).print(words, markup=False, soft_wrap=True)
