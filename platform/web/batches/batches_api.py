"""/v1/batches: requests of a file, run in the background."""

import asyncio
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request

from loraplex.registry.batches.batches import NewBatch

from ..endpoints.dependencies import CallerOf, RegistryOf, SettingsOf
from ..http.errors import invalid
from ..http.json_body import convert, read_json
from ..http.refusals import as_api_error
from .answers import batch_list, batch_object
from .files_api import LEAST_SECONDS, MOST_SECONDS, owner_of

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
"""That lines may be sent to: those that take the pipeline."""
MOST_METADATA: Final = 16
PageSize = Annotated[int, Query(ge=1, le=100)]
Metadata = dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]]

router = APIRouter(tags=["Files and batches"])


class OutputExpiresAfter(msgspec.Struct, forbid_unknown_fields=True):
    """Of the output and error file."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=LEAST_SECONDS, le=MOST_SECONDS)]


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`input_file_id`: of a file with the purpose `batch`."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Annotated[Metadata, msgspec.Meta(max_length=MOST_METADATA)] | None = None
    output_expires_after: OutputExpiresAfter | None = None


@router.post("/v1/batches")
async def create_batch(request: Request, registry: RegistryOf, settings: SettingsOf, caller: CallerOf) -> Any:
    """Run each line of a file as one request. It begins at once and gives way to all other requests."""
    fields = convert(await read_json(request, settings.body_timeout), BatchRequest)
    if fields.endpoint not in ENDPOINTS:
        raise invalid(f"endpoint must be one of {', '.join(ENDPOINTS)}.", "endpoint")
    expires = fields.output_expires_after
    new = NewBatch(fields.endpoint, fields.input_file_id, fields.metadata, None if expires is None else expires.seconds)
    with as_api_error():
        batch = await asyncio.to_thread(
            registry.batches.create,
            new,
            actor=caller.actor,
            tenant=caller.tenant,
            owner=owner_of(caller),
            most_waiting=settings.max_waiting_batches,
        )
    return msgspec.to_builtins(batch_object(batch))


@router.get("/v1/batches")
async def list_batches(registry: RegistryOf, caller: CallerOf, after: str | None = None, limit: PageSize = 20) -> Any:
    """The tenant's batches, the newest first. `after`: the id of the last one that is known already."""
    with as_api_error("after"):
        page = await asyncio.to_thread(registry.batches.list, caller.tenant, owner_of(caller), after=after, limit=limit)
    return msgspec.to_builtins(batch_list(page))


@router.get("/v1/batches/{batch_id}")
async def get_batch(batch_id: str, registry: RegistryOf, caller: CallerOf) -> Any:
    """How far a batch is, and where its results are."""
    with as_api_error():
        batch = await asyncio.to_thread(registry.batches.get, batch_id, caller.tenant, owner_of(caller))
    return msgspec.to_builtins(batch_object(batch))


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(batch_id: str, registry: RegistryOf, caller: CallerOf) -> Any:
    """Let a batch end soon, with the results that it has by then."""
    with as_api_error():
        batch = await asyncio.to_thread(
            registry.batches.cancel, batch_id, actor=caller.actor, tenant=caller.tenant, owner=owner_of(caller)
        )
    return msgspec.to_builtins(batch_object(batch))
