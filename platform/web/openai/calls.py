"""What the two generating endpoints share: reading the body, and answering whole or as a stream."""

import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response

from ..auth import Caller
from ..errors import invalid
from ..event_stream import EventStream, while_connected
from ..generation import Answers, Delta, Generation, collect, deltas_of, usage_of
from ..json_body import convert, read_json
from ..off_loop import off_loop
from ..quotas import Admission
from ..routing.copies import Repeatable, draw_copy
from ..routing.watch import start_watched, version_header
from ..state import State
from .chunks import Chunks
from .fields import check_fields, ignored_header
from .schemas import GenerationFields

Fields = TypeVar("Fields", bound=GenerationFields)
LOGPROB_CHARS: Final = 4
"""An alternative of a log-probability takes as long as so many characters in which calls are looked for."""


class Call(Repeatable, Protocol):
    """One request to a generating endpoint, checked. `start` builds the prompts and the generations, and reserves what
    they may use; it raises ApiError."""

    @property
    def object(self) -> str:
        """Value of `object` in a whole answer."""

    @property
    def chunk_object(self) -> str:
        """Value of `object` in a chunk."""

    @property
    def id_prefix(self) -> str: ...

    def document(self, generations: list[Generation], answers: Answers) -> dict[str, Any]:
        """The members of a whole answer beside the head and the usage. May run on a thread."""

    def events(self, delta: Delta, chunks: Chunks, generation: Generation) -> bytes:
        """The events for one delta, possibly none."""


async def read_fields(
    request: Request, state: State, schema: type[Fields]
) -> tuple[Fields, frozenset[str], dict[str, str]]:
    """The body as `schema`, the names of its members, and response headers that name what was ignored."""
    body = await read_json(request, state.settings.body_timeout)
    ignored = check_fields(body, schema.__struct_fields__)
    fields = convert(body, schema)
    if fields.stream_options is not None and not fields.stream:
        raise invalid("stream_options is only for streams; set stream to true, or leave it out.", "stream_options")
    return fields, frozenset(body), ignored_header(ignored)


async def answer(request: Request, state: State, caller: Caller, call: Call, headers: dict[str, str]) -> Response:
    limits: dict[str, str] = {}
    if call.fields.stream:
        return EventStream(_stream(state, caller, call, limits), state.settings.ping_seconds, headers, limits)
    document = await while_connected(request, _complete(state, caller, call, limits))
    return Response(document, media_type="application/json", headers=headers | limits)


@contextmanager
def _admitted(state: State, caller: Caller) -> Iterator[Admission]:
    """A place among the requests in flight, and what the quotas grant, both until the block ends."""
    with state.requests.hold(), state.quotas.admit(caller.tenant, caller.actor, caller.quota) as admission:
        yield admission


async def _complete(state: State, caller: Caller, call: Call, limits: dict[str, str]) -> bytes:
    """`limits` becomes the headers that say what is left, and which version answers."""
    with _admitted(state, caller) as admission:
        generations = await start_watched(state, caller.tenant, call, admission)
        limits |= admission.headers() | version_header(call.served)
        answers = await collect(generations)
    copy = draw_copy(state, caller.tenant, call, generations)
    if copy is not None:
        copy.hear_all(answers)
        copy.send()
    return await off_loop(partial(_whole, call, generations, answers), _size(answers))


def _whole(call: Call, generations: list[Generation], answers: Answers) -> bytes:
    members = {**_head(call, call.object), **call.document(generations, answers), "usage": answers.usage.as_json()}
    return msgspec.json.encode(members)


def _size(answers: Answers) -> int:
    """What making a document of it takes, in characters."""
    logprobs = (entry for choice in answers.choices for entry in choice.logprobs)
    of_prompts = (entry for entries in answers.prompt_logprobs for entry in entries if entry is not None)
    alternatives = sum(1 + len(entry.top) for entry in chain(logprobs, of_prompts))
    return sum(len(choice.text) for choice in answers.choices) + LOGPROB_CHARS * alternatives


async def _stream(state: State, caller: Caller, call: Call, limits: dict[str, str]) -> AsyncGenerator[bytes, None]:
    """`limits` as in _complete, before the first event."""
    with _admitted(state, caller) as admission:
        generations = await start_watched(state, caller.tenant, call, admission)
        limits |= admission.headers() | version_header(call.served)
        copy = draw_copy(state, caller.tenant, call, generations)
        chunks = Chunks(_head(call, call.chunk_object), call.fields.wants_usage(), call.fields.wants_running_usage())
        n = call.fields.n
        async with aclosing(deltas_of(generations)) as deltas:
            async for delta in deltas:
                if copy is not None:
                    copy.hear(delta)
                events = call.events(delta, chunks, generations[delta.index // n])
                if events:
                    yield events
        if call.fields.wants_usage():
            yield chunks.of_usage(usage_of(generations))
    if copy is not None:
        copy.send()


def _head(call: Call, object: str) -> dict[str, Any]:
    call_id = f"{call.id_prefix}-{uuid.uuid4().hex}"
    return {"id": call_id, "object": object, "created": int(time.time()), "model": call.fields.model}
