"""`loraplex adapters profile`: how a version is asked where requests leave it open, here or over a server's API."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.adapters.profiles import ServingProfile
from loraplex.registry.base import ServedBase
from loraplex.registry.names import parse_reference
from loraplex.registry.registry import Registry

from ...http.errors import ApiError
from ...http.json_body import parse_object
from ...management.profile_check import ProfileTrial, read_profile, try_profile
from ...settings.running_server import ACTOR
from ...settings.settings import Settings
from ...text.text_processor import base_text_processor
from ...text.text_processor_cache import TextProcessorCache
from ..api_client import Key
from ..opened import opened_registry
from ..output import Fields, Json, Tenant, print_json
from ..remote import At, Remote, remote_and_tenant
from ..settings_here import settings_here
from .adapter_places import path_of

Reference = Annotated[str, typer.Argument(metavar="NAME[@VERSION]")]
File = Annotated[
    Path | None, typer.Option("--file", help="Set the profile to this JSON object.", metavar="PROFILE.json")
]
Show = Annotated[bool, typer.Option("--show", help="Print the profile (the default).")]
Clear = Annotated[bool, typer.Option("--clear", help="Remove the profile.")]
console = Console(highlight=False, markup=False)


def profile(
    reference: Reference,
    file: File = None,
    show: Show = False,
    clear: Clear = False,
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Show, set or remove the serving profile of a version (default: the current one)."""
    if (file is not None) + show + clear > 1:
        raise ValueError("--file, --show and --clear cannot be combined. Use one of them.")
    remote, tenant = remote_and_tenant(server, key, tenant)
    number, given = _here(reference, tenant, file, clear) if remote is None else _there(remote, reference, file, clear)
    if as_json:
        print_json(given)
        return
    pinned = f"{parse_reference(reference).name}@{number}"
    console.print(f"{pinned} {'has a serving profile' if given else 'has no serving profile'}")
    for name, value in given.items():
        console.print(f"{name:18} {_shown(value)}", soft_wrap=True)


def _there(remote: Remote, reference: str, file: Path | None, clear: bool) -> tuple[int, Fields]:
    """The number of the version, and its profile now."""
    path = f"{path_of(reference)}/profile"
    if file is not None:
        answer = remote.ask("PUT", path, _object_in(file))
    else:
        if clear:
            remote.ask("DELETE", path)
        answer = remote.ask("GET", path)
    return answer["version"], answer["profile"] or {}


def _here(reference: str, tenant: str, file: Path | None, clear: bool) -> tuple[int, Fields]:
    settings = settings_here()
    with opened_registry(settings) as (registry, base):
        version, found = registry.profiles.get(reference, tenant)
        pinned = f"{parse_reference(reference).name}@{version.number}"
        if file is not None:
            found = asyncio.run(_checked(settings, registry, base, version.tokenizer_digest, file))
        if file is not None or clear:
            found = None if clear else found
            registry.profiles.set(pinned, found, actor=ACTOR, tenant=tenant)
    return version.number, {} if found is None else found.given()


async def _checked(
    settings: Settings, registry: Registry, base: ServedBase, tokenizer_digest: str | None, file: Path
) -> ServingProfile:
    """ValueError names the field."""
    assert base.folder is not None
    model, chars = ModelConfig.from_folder(base.folder), settings.max_prompt_chars
    text_processors = TextProcessorCache(
        base_text_processor(Tokenizer(base.folder), chars),
        model.eos_token_ids,
        registry.tokenizers,
        chars,
        settings.adapter_tokenizers,
    )
    try:
        found = read_profile(_object_in(file))
        length = settings.max_model_len or model.max_position_embeddings
        await try_profile(found, ProfileTrial(text_processors, tokenizer_digest, ACTOR, length, base.folder))
    except ApiError as error:
        raise ValueError(f"{file.name}: {error.message}") from None
    finally:
        text_processors.close()
    return found


def _object_in(file: Path) -> dict[str, Any]:
    try:
        return parse_object(file.read_bytes())
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}.") from None
    except ApiError as error:
        raise ValueError(f"{file.name}: {error.message}") from None


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
