"""answer: one request over HTTP, answered whole or as a stream of server-sent events."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from itertools import chain
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..access.caller import Caller
from ..http.errors import ApiError
from ..http.event_stream import PING, EventStream, while_connected
from ..http.off_loop import off_loop
from ..observability.refusal_log import RAN
from .call import Call, Keep
from .generation import Answers, collect, deltas_of, usage_of
from .inference import Inference
from .pipeline import Running, running

LOGPROB_CHARS: Final = 4
"""An alternative of a log-probability takes as long as so many characters in which calls are looked for."""


async def answer(
    request: Request,
    inference: Inference,
    caller: Caller,
    call: Call,
    headers: dict[str, str],
    ping: bytes = PING,
    keep: Keep | None = None,
) -> Response:
    """`headers`: of the response, beside those that say what is left and which versions answer. `ping`: of a stream."""
    late_headers = dict[str, str]()
    begun = _begun(request, inference, caller, call, late_headers)
    if call.fields.stream:
        stream = _Stream(begun, call, keep)
        ping_seconds = inference.settings.ping_seconds
        return EventStream(stream.events(), ping_seconds, headers, late_headers, stream.ending, ping)
    document = await while_connected(request, _document(begun, keep))
    return Response(document, media_type="application/json", headers=headers | late_headers)


@asynccontextmanager
async def _begun(
    request: Request, inference: Inference, caller: Caller, call: Call, late_headers: dict[str, str]
) -> AsyncIterator[Running]:
    """`late_headers` become those that are known when the request has begun, before the first event."""
    noted = request.scope["state"]
    async with running(inference, caller, call, noted["request_id"]) as run:
        noted[RAN] = True
        late_headers |= run.headers
        yield run


async def _document(begun: AbstractAsyncContextManager[Running], keep: Keep | None) -> bytes:
    async with begun as run:
        answers = await collect(run.generations)
    if run.copy is not None:
        run.copy.send(answers.choices[0].text)
    size = _size(answers)
    document = await off_loop(partial(run.format.document, run.generations, answers), size)
    if keep is not None:
        await keep(run.format, answers.usage)
    return await off_loop(partial(msgspec.json.encode, document), size)


def _size(answers: Answers) -> int:
    """What making a document of it takes, in characters."""
    logprobs = (entry for choice in answers.choices for entry in choice.logprobs)
    of_prompts = (entry for entries in answers.prompt_logprobs for entry in entries if entry is not None)
    alternatives = sum(1 + len(entry.top) for entry in chain(logprobs, of_prompts))
    texts = sum(len(choice.text) + len(choice.pooled or b"") for choice in answers.choices)
    return texts + LOGPROB_CHARS * alternatives


class _Stream:
    """The events of one answer. Until it has a format, the call itself says how it ends."""

    def __init__(self, begun: AbstractAsyncContextManager[Running], call: Call, keep: Keep | None) -> None:
        self._begun, self._keep = begun, keep
        self._ending = call.ending

    def ending(self, error: ApiError | None) -> bytes:
        return self._ending(error)

    async def events(self) -> AsyncGenerator[bytes, None]:
        texts = list[str]()
        async with self._begun as run:
            self._ending = run.format.ending
            n = run.generations[0].n
            async with aclosing(deltas_of(run.generations)) as deltas:
                async for delta in deltas:
                    if run.copy is not None:
                        texts.append(delta.text)
                    events = run.format.events(delta, run.generations[delta.index // n])
                    if events:
                        yield events
            usage = usage_of(run.generations)
            if self._keep is not None:
                await self._keep(run.format, usage)
            events = run.format.last_events(usage)
            if events:
                yield events
        if run.copy is not None:
            run.copy.send("".join(texts))
