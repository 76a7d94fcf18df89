"""PUT of an adapter's files: raw bodies of declared size and SHA-256, written to disk as they come."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect

from loraplex.registry.artifacts import CONFIG_FILE, WEIGHTS_FILE, Blob, IncomingFile, check_sha256

from ..adapter_tokenizers.files import TOKENIZER_LIMITS
from ..dependencies import CallerOf, StateOf
from ..errors import ApiError, invalid, not_found
from ..sources.fetch import MAX_CONFIG_BYTES
from ..state import State
from .refusals import in_words

DIGEST_HEADER = "x-content-sha256"
WRITE_BYTES = 1 << 20
"""Chunks are gathered to this size, so that the disk is asked seldom."""

router = APIRouter(tags=["Adapters"])


@router.put("/api/v1/adapters/{name}/files/{filename}", status_code=201)
async def put_file(name: str, filename: str, request: Request, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Receive one file. It becomes part of an adapter when a version is made of it. Bytes that this tenant has sent
    before need not come again."""
    limit = _limit(filename, state)
    size, sha256 = _declared(request)
    with in_words(), state.uploads.hold():
        state.registry.adapters.check_name(name)
        check_sha256(sha256)
        known = await asyncio.to_thread(state.registry.uploads.find, sha256, caller.tenant)
        if known is not None and known.size == size:
            return _receipt(filename, known, already_here=True)
        incoming = await asyncio.to_thread(state.registry.store.receive, size, sha256, limit)
        blob = await _receive(incoming, request, state.settings.upload_timeout)
        await asyncio.to_thread(state.registry.uploads.note, sha256, caller.tenant)
    return _receipt(filename, blob, already_here=False)


async def _receive(incoming: IncomingFile, request: Request, timeout: float) -> Blob:
    with incoming:
        try:
            await asyncio.wait_for(_copy(request, incoming), timeout)
        except TimeoutError:
            raise ApiError(
                408, f"The file did not arrive within {timeout:g} seconds.", code="request_timeout"
            ) from None
        except ClientDisconnect:
            raise invalid("The connection closed before the file was complete. Upload it again.") from None
        return await asyncio.to_thread(incoming.finish)


async def _copy(request: Request, incoming: IncomingFile) -> None:
    gathered = bytearray()
    async for chunk in request.stream():
        gathered += chunk
        if len(gathered) >= WRITE_BYTES:
            await asyncio.to_thread(incoming.write, bytes(gathered))
            gathered.clear()
    await asyncio.to_thread(incoming.write, bytes(gathered))


def _limit(filename: str, state: State) -> int:
    limits = {CONFIG_FILE: MAX_CONFIG_BYTES, WEIGHTS_FILE: int(state.settings.max_adapter_bytes), **TOKENIZER_LIMITS}
    if filename not in limits:
        optional = ", ".join(TOKENIZER_LIMITS)
        message = f"An adapter has the files {CONFIG_FILE} and {WEIGHTS_FILE}, and may have {optional}"
        raise not_found(f"{message}; {filename[:80]!a} is none of them.")
    return limits[filename]


def _declared(request: Request) -> tuple[int, str]:
    length, sha256 = request.headers.get("content-length"), request.headers.get(DIGEST_HEADER)
    if length is None or not length.isdigit():
        raise ApiError(411, "Declare the file's size in the header content-length.", param="content-length")
    if sha256 is None:
        raise invalid(f"Declare the file's SHA-256 in the header {DIGEST_HEADER}, as 64 hex digits.", DIGEST_HEADER)
    return int(length), sha256.lower()


def _receipt(filename: str, blob: Blob, already_here: bool) -> dict[str, Any]:
    return {"file": filename, "sha256": blob.sha256, "size": blob.size, "already_here": already_here}
