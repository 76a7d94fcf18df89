"""GET and DELETE /v1/responses/{response_id}, its input_items and cancel: what is kept of responses."""

import asyncio
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Response

from loraplex.registry.registry import Registry
from loraplex.registry.stored_responses import KeptResponse

from ...access.caller import Caller
from ...endpoints.dependencies import CallerOf, RegistryOf
from ...http.errors import invalid, not_found
from ...http.refusals import as_api_error
from .memory import reader_of

router = APIRouter(tags=["OpenAI"])
PATH: Final = "/v1/responses/{response_id}"


@router.get(PATH)
async def get_response(response_id: str, registry: RegistryOf, caller: CallerOf, stream: bool = False) -> Response:
    """A response as it was answered."""
    if stream:
        raise invalid("stream: a kept response comes whole. Leave it out.", "stream", "unsupported")
    kept = await _find(registry, caller, response_id)
    return Response(kept.document, media_type="application/json")


@router.delete(PATH)
async def delete_response(response_id: str, registry: RegistryOf, caller: CallerOf) -> dict[str, Any]:
    """Forget a response. Those that follow it can be read, and not be followed any more."""
    with as_api_error("response_id"):
        await asyncio.to_thread(registry.responses.delete, response_id, reader_of(caller))
    return {"id": response_id, "object": "response", "deleted": True}


@router.get(f"{PATH}/input_items")
async def list_input_items(
    response_id: str,
    registry: RegistryOf,
    caller: CallerOf,
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> dict[str, Any]:
    """The items of its own input; those of the responses that it follows are theirs."""
    kept = await _find(registry, caller, response_id)
    items: list[dict[str, Any]] = msgspec.json.decode(kept.items)
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if after and after not in ids:
        raise not_found(f"The response has no input item with the id {after[:80]!a}.", "after")
    first = ids.index(after) + 1 if after else 0
    page = items[first : first + limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return {"object": "list", "data": page, **ends, "has_more": first + limit < len(items)}


@router.post(f"{PATH}/cancel")
async def cancel_response(response_id: str, registry: RegistryOf, caller: CallerOf) -> Response:
    """Refused: a response that is kept is complete. To cancel one that is being made, close its connection."""
    await _find(registry, caller, response_id)
    raise invalid("Cannot cancel a synchronous response. Close the connection of one that is still being made.")


async def _find(registry: Registry, caller: Caller, response_id: str) -> KeptResponse:
    """Raises ApiError 404."""
    with as_api_error("response_id"):
        return await asyncio.to_thread(registry.responses.get, response_id, reader_of(caller))
