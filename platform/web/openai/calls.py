"""What the generating endpoints share: reading the body, and answering whole or as a stream."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response

from ..access.caller import Caller
from ..http.errors import ApiError, invalid
from ..http.event_stream import EventStream, while_connected
from ..http.json_body import convert, read_json
from ..http.off_loop import off_loop
from ..inference.generation import Answers, Delta, Generation, collect, deltas_of, usage_of
from ..inference.watch import start_watched, version_header
from ..observability.refusal_log import MODEL, RAN
from ..quotas.meters import Usage
from ..quotas.quotas import Admission
from ..state import State
from .fields import check_fields, ignored_header
from .schemas import GenerationFields
from .shadow_copies import Repeatable, draw_copy

Fields = TypeVar("Fields", bound=GenerationFields)
LOGPROB_CHARS: Final = 4
"""An alternative of a log-probability takes as long as so many characters in which calls are looked for."""


class Call(Repeatable, Protocol):
    """One request to a generating endpoint, checked. `start` builds the prompts and the generations, and reserves what
    they may use; it raises ApiError."""

    def document(self, generations: list[Generation], answers: Answers) -> dict[str, Any]:
        """The whole answer. May run on a thread."""

    def events(self, delta: Delta, generation: Generation) -> bytes:
        """The events of a stream for one delta, possibly none."""

    def last_events(self, usage: Usage) -> bytes:
        """Those that follow the last delta, possibly none."""

    def ending(self, error: ApiError | None) -> bytes:
        """What a stream ends with in any case; `error`: it ended early."""

    def explain_refusal(self, error: ApiError) -> ApiError:
        """A refusal in terms of the fields that this endpoint has."""


async def read_fields(
    request: Request, state: State, schema: type[Fields]
) -> tuple[Fields, frozenset[str], dict[str, str]]:
    """The body as `schema`, the names of its members, and response headers that name what was ignored."""
    body = await read_json(request, state.settings.body_timeout)
    ignored = check_fields(body, schema.__struct_fields__)
    fields = convert(body, schema)
    note_model(request, fields.model)
    if fields.stream_options is not None and not fields.stream:
        raise invalid("stream_options is only for streams; set stream to true, or leave it out.", "stream_options")
    return fields, frozenset(body), ignored_header(ignored)


async def answer(request: Request, state: State, caller: Caller, call: Call, headers: dict[str, str]) -> Response:
    limits: dict[str, str] = {}
    if call.fields.stream:
        events = _stream(request, state, caller, call, limits)
        return EventStream(events, state.settings.ping_seconds, headers, limits, ending=call.ending)
    document = await while_connected(request, _complete(request, state, caller, call, limits))
    return Response(document, media_type="application/json", headers=headers | limits)


def note_model(request: Request, model: str) -> None:
    """What the request asks for, for the log of requests."""
    request.scope["state"][MODEL] = model


@contextmanager
def _admitted(state: State, caller: Caller) -> Iterator[Admission]:
    """A place among the requests in flight, and what the quotas grant, both until the block ends."""
    with state.requests.hold(), state.quotas.admit(caller.tenant, caller.actor, caller.quota) as admission:
        yield admission


@contextmanager
def _refusals_explained(call: Call) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise call.explain_refusal(error) from error


async def _complete(request: Request, state: State, caller: Caller, call: Call, limits: dict[str, str]) -> bytes:
    """`limits` becomes the headers that say what is left, and which version answers."""
    with _admitted(state, caller) as admission, _refusals_explained(call):
        generations = await start_watched(state, caller.tenant, call, admission)
        request.scope["state"][RAN] = True
        limits |= admission.headers() | version_header(call.served)
        answers = await collect(generations)
    copy = draw_copy(state, caller.tenant, call, generations)
    if copy is not None:
        copy.hear_all(answers)
        copy.send()
    return await off_loop(partial(_whole, call, generations, answers), _size(answers))


def _whole(call: Call, generations: list[Generation], answers: Answers) -> bytes:
    return msgspec.json.encode(call.document(generations, answers))


def _size(answers: Answers) -> int:
    """What making a document of it takes, in characters."""
    logprobs = (entry for choice in answers.choices for entry in choice.logprobs)
    of_prompts = (entry for entries in answers.prompt_logprobs for entry in entries if entry is not None)
    alternatives = sum(1 + len(entry.top) for entry in chain(logprobs, of_prompts))
    return sum(len(choice.text) for choice in answers.choices) + LOGPROB_CHARS * alternatives


async def _stream(
    request: Request, state: State, caller: Caller, call: Call, limits: dict[str, str]
) -> AsyncGenerator[bytes, None]:
    """`limits` as in _complete, before the first event."""
    with _admitted(state, caller) as admission, _refusals_explained(call):
        generations = await start_watched(state, caller.tenant, call, admission)
        request.scope["state"][RAN] = True
        limits |= admission.headers() | version_header(call.served)
        copy = draw_copy(state, caller.tenant, call, generations)
        n = call.fields.n
        async with aclosing(deltas_of(generations)) as deltas:
            async for delta in deltas:
                if copy is not None:
                    copy.hear(delta)
                events = call.events(delta, generations[delta.index // n])
                if events:
                    yield events
        events = call.last_events(usage_of(generations))
        if events:
            yield events
    if copy is not None:
        copy.send()
