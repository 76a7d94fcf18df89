"""/v1/files: input files of batches, and what batches have made of them."""

import asyncio
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import FileResponse, Response

from loraplex.registry.batches.files import INPUT
from loraplex.registry.database.tables import utc_now

from ..access.caller import Caller
from ..endpoints.dependencies import CallerOf, RegistryOf, StateOf
from ..http.errors import ApiError, invalid
from ..http.refusals import as_api_error
from .answers import DeletedFile, file_list, file_object
from .upload import UploadForm, receive_form

LEAST_SECONDS, MOST_SECONDS = 3600, 2_592_000
"""For which a file may be kept, as OpenAI has it: an hour to 30 days."""
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FORM_BYTES: Final = 64 << 10
"""That a form may have beside its file."""
Order = Literal["asc", "desc"]
PageSize = Annotated[int, Query(ge=1, le=10_000)]

router = APIRouter(tags=["Files and batches"])


@router.post("/v1/files")
async def create_file(request: Request, state: StateOf, caller: CallerOf) -> Any:
    """Keep a file with one request on each line. The form has `purpose` (`batch`), `file`, and perhaps
    `expires_after[anchor]` (`created_at`) and `expires_after[seconds]`."""
    settings, files = state.settings, state.registry.files
    length, most_bytes = request.headers.get("content-length", ""), int(settings.max_batch_file_bytes)
    size = min(int(length), most_bytes) if length.isdecimal() and len(length) < 16 else most_bytes
    with as_api_error(), state.uploads.hold(caller.tenant, caller.actor) as slot:
        writer = await asyncio.to_thread(files.begin, caller.tenant, size, int(settings.max_files_bytes))
        with writer:
            form = await receive_form(request, writer, slot, most_bytes, settings)
            seconds = _checked(form, int(settings.file_days * 86400))
            assert form.filename is not None, "a complete form has a file"
            file = await asyncio.to_thread(
                files.add,
                writer,
                form.filename,
                actor=caller.actor,
                tenant=caller.tenant,
                expires_at=utc_now() + timedelta(seconds=seconds),
            )
    return msgspec.to_builtins(file_object(file))


@router.get("/v1/files")
async def list_files(
    registry: RegistryOf,
    caller: CallerOf,
    purpose: str | None = None,
    after: str | None = None,
    limit: PageSize = 10_000,
    order: Order = "desc",
) -> Any:
    """The tenant's files. `after`: the id of the last one that is known already."""
    with as_api_error("after"):
        page = await asyncio.to_thread(
            registry.files.list,
            caller.tenant,
            owner_of(caller),
            purpose=purpose,
            after=after,
            limit=limit,
            newest_first=order == "desc",
        )
    return msgspec.to_builtins(file_list(page))


@router.get("/v1/files/{file_id}")
async def get_file(file_id: str, registry: RegistryOf, caller: CallerOf) -> Any:
    """What is known of one file."""
    with as_api_error():
        file = await asyncio.to_thread(registry.files.get, file_id, caller.tenant, owner_of(caller))
    return msgspec.to_builtins(file_object(file))


@router.delete("/v1/files/{file_id}")
async def delete_file(file_id: str, registry: RegistryOf, caller: CallerOf) -> Any:
    """Forget a file that no batch reads any more."""
    with as_api_error():
        await asyncio.to_thread(registry.files.delete, file_id, caller.tenant, owner_of(caller))
    return msgspec.to_builtins(DeletedFile(id=file_id))


@router.get("/v1/files/{file_id}/content")
async def get_content(file_id: str, registry: RegistryOf, caller: CallerOf) -> Response:
    """The file's bytes."""
    with as_api_error():
        file = await asyncio.to_thread(registry.files.get, file_id, caller.tenant, owner_of(caller))
    path = registry.files.path(file)
    if not await asyncio.to_thread(path.is_file):
        raise ApiError(404, "The file's bytes are missing in the artifact store.", param="file_id", code="file_lost")
    return FileResponse(path, media_type="application/octet-stream", filename=file.filename)


def owner_of(caller: Caller) -> str | None:
    """A key of some adapters sees its own files and batches: those of others have answers of other adapters."""
    return None if caller.only is None else caller.actor


def _checked(form: UploadForm, default: int) -> int:
    """Seconds for which the file is kept."""
    fields, purpose = form.fields, form.fields.get("purpose")
    if purpose != INPUT:
        given = "is missing" if purpose is None else f"is {purpose[:40]!a}"
        raise invalid(f"purpose {given}: this server keeps files of the purpose '{INPUT}'.", "purpose")
    for name in fields:
        if name not in ("purpose", ANCHOR, SECONDS):
            raise invalid(f"{name[:40]!a} is no field of this form. Leave it out.", name)
    if ANCHOR not in fields and SECONDS not in fields:
        return default
    if fields.get(ANCHOR) != "created_at":
        raise invalid("expires_after.anchor must be 'created_at'.", "expires_after.anchor")
    seconds = fields.get(SECONDS, "")
    if not seconds.isascii() or not seconds.isdecimal() or not LEAST_SECONDS <= int(seconds[:16]) <= MOST_SECONDS:
        words = f"expires_after.seconds must be a number from {LEAST_SECONDS} to {MOST_SECONDS}."
        raise invalid(words, "expires_after.seconds")
    return int(seconds)
