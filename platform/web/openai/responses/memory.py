"""What is kept of responses: what a new one follows, and what those that follow it will need."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from loraplex.registry.database.database import AWAY
from loraplex.registry.errors import UnknownResponse
from loraplex.registry.stored_responses import Bounds, KeptResponse, Reader, StoredResponses

from ...access.caller import Caller
from ...http.database_errors import log_failure
from ...http.errors import invalid
from ...settings.settings import Settings
from ..schemas import MAX_MESSAGES
from .items import whole_items
from .schemas import Item

FIELD: Final = "previous_response_id"
BYTES_A_CHARACTER: Final = 16
"""Of a stored conversation, whose answers may have log-probabilities: more is not worth reading."""
PRUNE_SECONDS: Final = 60.0

logger = logging.getLogger(__name__)


def reader_of(caller: Caller) -> Reader:
    """A key for some models alone sees its own responses, any other credential those of its tenant."""
    return Reader(caller.tenant, None if caller.only is None else caller.actor)


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a response follows: ids of responses, the first one first, and the items that they have read and said."""

    ids: Sequence[str] = ()
    items: Sequence[Item] = ()


async def earlier(store: StoredResponses, caller: Caller, previous: str | None, settings: Settings) -> Earlier:
    """Raises ApiError."""
    if previous is None:
        return Earlier()
    if not settings.response_days:
        words = "this server keeps no responses (response_days is 0). Send the whole conversation in input"
        raise invalid(f"{FIELD} is not supported: {words}.", FIELD, "unsupported")
    most_bytes = BYTES_A_CHARACTER * settings.max_prompt_chars
    read = partial(store.conversation, previous, reader_of(caller), MAX_MESSAGES, most_bytes)
    try:
        kept = await asyncio.to_thread(read)
    except UnknownResponse as error:
        raise invalid(str(error), FIELD, "previous_response_not_found") from None
    except ValueError as error:
        raise invalid(f"{FIELD}: {error}. Begin a new one.", FIELD, "prompt_too_long") from None
    found = [item for one in kept for item in (*_decoded(one.items), *_decoded(one.document)["output"])]
    return Earlier([one.id for one in kept], msgspec.convert(found, list[Item]))


@dataclass(frozen=True, slots=True)
class Keeping:
    """How one response is kept. `input`: as it was sent."""

    id: str
    """Of the response."""
    store: StoredResponses
    tenant: str
    actor: str
    input: str | list[Any]
    previous: Sequence[str]

    async def keep(self, document: dict[str, Any]) -> bool:
        """Whether it could be: the answer does not wait for a database that is away."""
        items = msgspec.json.encode(whole_items(self.input))
        kept = KeptResponse(document["id"], items, msgspec.json.encode(document), datetime.now(UTC))
        try:
            await asyncio.to_thread(self.store.put, self.tenant, self.actor, kept, self.previous)
        except AWAY as error:
            log_failure(logger, "a response could not be kept", error)
            return False
        return True


async def forget_responses(store: StoredResponses, settings: Settings) -> None:
    """For ever: what is too old or too much goes."""
    age = timedelta(days=settings.response_days)
    bounds = Bounds(age, settings.max_stored_responses, int(settings.max_stored_response_bytes))
    while True:
        try:
            await asyncio.to_thread(store.prune, bounds)
        except AWAY as error:
            log_failure(logger, "old responses could not be removed", error)
        await asyncio.sleep(PRUNE_SECONDS)


def _decoded(raw: bytes) -> Any:
    return msgspec.json.decode(raw)
