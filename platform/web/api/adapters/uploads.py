"""PUT of an adapter's files: raw bodies of declared size and SHA-256, written to disk as they come."""

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.requests import ClientDisconnect

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE, check_sha256
from loraplex.registry.files.incoming import Blob, IncomingFile, kept_bytes

from ...adapter_tokenizers.files import TOKENIZER_LIMITS
from ...adapters.upload_slots import RETRY_AFTER, Slot, SlotLost
from ...endpoints.dependencies import CallerOf, StateOf
from ...http.body import BodyStalled, open_steady_body
from ...http.errors import ApiError, invalid, not_found, overloaded
from ...http.file_copy import copy_body
from ...http.refusals import as_api_error
from ...settings.settings import Settings
from ...sources.fetch import MAX_CONFIG_BYTES
from ..fields import Sha256

if TYPE_CHECKING:
    pass

DIGEST_HEADER = "x-content-sha256"

LENGTH = re.compile(r"[0-9]{1,15}", re.ASCII)
RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Declared:
    """What a PUT says of itself: the first byte it brings, and size and SHA-256 of the whole file."""

    start: int
    size: int
    sha256: str


Size = Annotated[int, Query(ge=0)]

router = APIRouter(tags=["Adapters"])


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    sha256: Sha256
    size: int
    already_here: bool


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """`received`: bytes that are here."""

    file: str
    sha256: Sha256
    received: int
    already_here: bool


@router.put("/api/v1/adapters/{name}/files/{filename}", status_code=201)
async def put_file(name: str, filename: str, request: Request, state: StateOf, caller: CallerOf) -> Any:
    """Receive one file, or with `content-range` the rest of it. It becomes part of an adapter when a version is made of
    it. Bytes that this tenant has sent before need not come again."""
    limit, declared = _limit(filename, state.settings), _declared(request)
    with as_api_error():
        state.registry.adapters.check_name(name)
        check_sha256(declared.sha256)
        known = await asyncio.to_thread(state.registry.uploads.find, declared.sha256, caller.tenant)
        if known is not None and known.size == declared.size:
            return _receipt(filename, known, already_here=True)
        # Only now: nobody gives way to what need not or must not come.
        with state.uploads.hold(caller.tenant, caller.actor) as slot:
            incoming = await asyncio.to_thread(
                state.registry.store.receive, declared.size, declared.sha256, limit, caller.tenant
            )
            blob = await _receive(incoming, declared, request, slot, state.settings)
            await asyncio.to_thread(state.registry.uploads.note, declared.sha256, caller.tenant)
    return _receipt(filename, blob, already_here=False)


@router.get("/api/v1/adapters/{name}/files/{filename}")
async def get_received(name: str, filename: str, size: Size, request: Request, state: StateOf, caller: CallerOf) -> Any:
    """How much of a file of `size` bytes and the SHA-256 in x-content-sha256 is here; a PUT may go on from there."""
    sha256, incoming = _sha256(request), state.registry.store.incoming
    _limit(filename, state.settings)
    with as_api_error():
        state.registry.adapters.check_name(name)
        check_sha256(sha256)
        known = await asyncio.to_thread(state.registry.uploads.find, sha256, caller.tenant)
    already_here = known is not None and known.size == size
    received = size if already_here else await asyncio.to_thread(kept_bytes, incoming, caller.tenant, size, sha256)
    return msgspec.to_builtins(Received(file=filename, sha256=sha256, received=received, already_here=already_here))


async def _receive(
    incoming: IncomingFile, declared: Declared, request: Request, slot: Slot, settings: Settings
) -> Blob:
    with incoming:
        if declared.start == 0:
            await asyncio.to_thread(incoming.restart)
        elif declared.start != incoming.received:
            raise _not_there(declared.start, incoming.received)
        size, stall = declared.size - declared.start, settings.upload_stall_timeout
        try:
            async with slot.within(settings.upload_timeout):
                await copy_body(await open_steady_body(request, size, stall), incoming)
        except TimeoutError:
            raise _too_slow(f"The file did not arrive within {settings.upload_timeout:g} seconds.", incoming) from None
        except BodyStalled:
            raise _too_slow(f"Less than 1 MiB of the file arrived within {stall:g} seconds.", incoming) from None
        except SlotLost as gone:
            raise _gave_way(str(gone), incoming) from None
        except ClientDisconnect:
            raise invalid(
                "The connection closed before the file was complete. Send the rest with content-range."
            ) from None
        return await asyncio.to_thread(incoming.finish)


def _limit(filename: str, settings: "Settings") -> int:
    limits = {CONFIG_FILE: MAX_CONFIG_BYTES, WEIGHTS_FILE: int(settings.max_adapter_bytes), **TOKENIZER_LIMITS}
    if filename not in limits:
        optional = ", ".join(TOKENIZER_LIMITS)
        message = f"An adapter's files are {CONFIG_FILE}, {WEIGHTS_FILE} and optionally {optional}"
        raise not_found(f"{message}; {filename[:80]!a} is not one of them.")
    return limits[filename]


def _too_slow(message: str, incoming: IncomingFile) -> ApiError:
    remedy = f"{incoming.received:,} bytes are stored: send the rest with content-range."
    return ApiError(408, f"{message} {remedy}", code="request_timeout", extra={"received": incoming.received})


def _gave_way(why: str, incoming: IncomingFile) -> ApiError:
    remedy = f"{incoming.received:,} bytes are stored: send the rest with content-range in {RETRY_AFTER} seconds."
    error = overloaded(f"{why} {remedy}", RETRY_AFTER)
    error.extra["received"] = incoming.received
    return error


def _not_there(start: int, received: int) -> ApiError:
    message = f"This PUT starts at byte {start:,}, but {received:,} bytes are stored. Start there, or at 0."
    return ApiError(409, message, param="content-range", code="wrong_offset", extra={"received": received})


def _declared(request: Request) -> Declared:
    length = request.headers.get("content-length")
    if length is None or not LENGTH.fullmatch(length):
        raise ApiError(411, "Declare the file's size in the header content-length.", param="content-length")
    content_range = request.headers.get("content-range")
    if content_range is None:
        return Declared(0, int(length), _sha256(request))
    found = RANGE.fullmatch(content_range)
    first, last, size = (int(number) for number in found.groups()) if found else (0, 0, 0)
    if not found or last != size - 1 or last - first + 1 != int(length):
        message = (
            "content-range must be 'bytes FIRST-LAST/SIZE', end with the file's last byte and match content-length."
        )
        raise invalid(message, "content-range")
    return Declared(first, size, _sha256(request))


def _sha256(request: Request) -> str:
    sha256 = request.headers.get(DIGEST_HEADER)
    if sha256 is None:
        raise invalid(f"Declare the file's SHA-256 in the header {DIGEST_HEADER}, as 64 hex digits.", DIGEST_HEADER)
    return sha256.lower()


def _receipt(filename: str, blob: Blob, already_here: bool) -> Any:
    return msgspec.to_builtins(Receipt(file=filename, sha256=blob.sha256, size=blob.size, already_here=already_here))
