"""`loraplex adapters add`: an adapter's folder becomes a version, on a server or on the database here."""

from pathlib import Path

import msgspec
import typer
from rich.console import Console

from loraplex.registry.adapters.activation import Activation
from loraplex.registry.errors import PreflightRefused

from ...api.answers import version_row
from ...settings.running_server import ACTOR
from ...settings.settings import Settings
from ..api_client import Key
from ..opened import opened_registry, served_path
from ..output import Fields, Json, Tenant
from ..remote import At, remote_and_tenant
from ..settings_here import settings_here
from .activation import Activate, Percent, ShareBy, activation_of
from .added import tell_added, tell_refusal


def add(
    name: str,
    folder: Path,
    activate: Activate = "",
    percent: Percent = 10,
    share_by: ShareBy = "request",
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Check the adapter in FOLDER (PEFT layout) and register it as NAME, with or without a running server."""
    activation = activation_of(activate, percent, share_by)
    remote, tenant = remote_and_tenant(server, key, tenant)
    if remote is not None:
        from .push import send_folder

        send_folder(remote, folder, name, as_json, activation)
        return
    settings = settings_here()
    _tell_base(settings)
    try:
        added = _add_here(settings, name, folder, tenant, activation)
    except PreflightRefused as error:
        tell_refusal(name, error.report, as_json)
        raise typer.Exit(1) from None
    tell_added(added, as_json)


def _tell_base(settings: Settings) -> None:
    """On standard error, so that JSON can be piped."""
    words = f"Checked against the model {settings.model}, without a server (data folder {settings.data_dir})."
    Console(stderr=True, highlight=False).print(words, markup=False, soft_wrap=True)


def _add_here(settings: Settings, name: str, folder: Path, tenant: str, activation: Activation | None) -> Fields:
    """As the API answers it."""
    from ...adapters.effect_check import NOT_HERE
    from ...management.registration import add_from_folder
    from ...management.told import registered_json
    from ...routing.moves import read_last_day

    beside = [NOT_HERE] if settings.preflight_logits else []
    with opened_registry(settings) as (registry, base):
        registry.tenants.get(tenant)
        certify = served_path(settings, base).digest if settings.certify_uploads else None
        tokenizers = settings.adapter_tokenizers
        terms = tokenizers, certify, beside, tenant, activation
        added, report = add_from_folder(registry, base, name, folder, ACTOR, *terms)
        told = registered_json(added, read_last_day(registry, added.before, with_labels=True))
    return {
        "name": added.name,
        "created": added.created,
        "version": version_row(added.version),
        "report": msgspec.to_builtins(report),
        **told,
    }
