"""Servicer: the four methods, over the pipeline that HTTP requests take."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from loraplex.registry.adapters.routes import Asker

from ..access.caller import Caller
from ..access.permissions import Permission
from ..endpoints.authentication import caller_of_key
from ..http.errors import ApiError, forbidden, from_engine, overloaded
from ..http.fair_executor import asking
from ..http.json_body import convert
from ..inference.generation import Delta, collect, deltas_of, usage_of
from ..inference.pipeline import running
from ..inference.resolve import find_served
from ..observability.tracing import note_parent
from ..pooling.embeddings import EmbeddingCall
from ..pooling.inputs import facts_of
from ..pooling.schemas import EmbeddingsRequest
from ..state import State
from .calls import EmbedCall, generate_call
from .messages import given, message

if TYPE_CHECKING:
    import grpc.aio

from loraplex.engine.ipc.client import RequestRejected

CODES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    507: "RESOURCE_EXHAUSTED",
}
MOST_LETTERS: Final = 128
"""Of a request's id."""


class Servicer:
    def __init__(self, state: State) -> None:
        self._state = state
        self._running: dict[tuple[str, str, str], asyncio.Event] = {}
        """By tenant, actor and request id: what is set to abort it."""

    async def generate(self, sent: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> AsyncIterator[bytes]:
        try:
            caller = self._caller(context, with_room=True)
            call, request_id = generate_call(sent), sent.request_id[:MOST_LETTERS] or f"grpc-{uuid.uuid4().hex}"
            place = (caller.tenant, caller.actor, request_id)
            if place in self._running:
                raise ApiError(400, f"request_id {request_id!a} is running already.", param="request_id")
            aborted = self._running[place] = asyncio.Event()
            try:
                async with running(self._state, caller, call, request_id) as run:
                    async with aclosing(deltas_of(run.generations)) as deltas, aclosing(until(deltas, aborted)) as told:
                        async for delta in told:
                            yield run.format.events(delta, run.generations[delta.index // run.generations[0].n])
                    yield run.format.last_events(usage_of(run.generations))
            finally:
                self._running.pop(place, None)
        except ApiError as error:
            await refuse(context, error)

    async def embed(self, sent: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> Any:
        caller = self._caller(context, with_room=True)
        fields = convert({"input": [], **given(sent)}, EmbeddingsRequest)
        request_id = f"grpc-{uuid.uuid4().hex}"
        call = EmbedCall(EmbeddingCall(fields, facts_of(self._state), request_id, "embedding"))
        async with running(self._state, caller, call, request_id) as run:
            answers = await collect(run.generations)
        return run.format.document(run.generations, answers)["message"]

    async def abort(self, sent: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> Any:
        caller = self._caller(context)
        aborted = self._running.get((caller.tenant, caller.actor, sent.request_id[:MOST_LETTERS]))
        if aborted is not None:
            aborted.set()
        return message("AbortResponse")(found=aborted is not None)

    async def get_model_info(self, sent: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> Any:
        caller, state = self._caller(context), self._state
        base, asker = state.base.name, Asker(caller.actor)
        served = await find_served(state, caller, sent.model or base, None, asker)
        found = next((adapter for adapter, _ in served.adapters.values()), None)
        snapshot = state.registry.snapshots.current
        names = [adapter.name for adapter, _ in snapshot.servable(caller.tenant, caller.only, asker)]
        bases = [base] if caller.only is None or base in caller.only else []
        return message("ModelInfo")(
            model=sent.model or base,
            base=base,
            max_model_len=state.max_model_len,
            vocab_size=served.vocab_size,
            is_adapter=found is not None,
            digest="" if found is None else found.digest,
            version=0 if found is None else found.version,
            has_chat_template=served.text_processor.template is not None,
            models=[*bases, *names],
        )

    def _caller(self, context: "grpc.aio.ServicerContext[Any, Any]", with_room: bool = False) -> Caller:
        """Whose key the metadata has. ApiError where it may not use models, or the server has no room."""
        state = self._state
        sent = {name: str(value) for name, value in context.invocation_metadata() or ()}
        caller = caller_of_key(sent, state)
        if not caller.allows(Permission.INFERENCE):
            raise forbidden("This key lacks the scope 'inference'. Use a key that has it.")
        asking.set(caller.tenant)
        note_parent(sent)
        if state.stopping.is_set():
            raise overloaded("The server is stopping. Try again in a moment.")
        if with_room:
            state.requests.check_room()
            try:
                state.engine.check_room(caller.tenant)
            except RequestRejected as error:
                raise from_engine(error) from None
        return caller


async def until(deltas: AsyncGenerator[Delta, None], aborted: asyncio.Event) -> AsyncGenerator[Delta, None]:
    """The deltas, as long as nobody aborts. ApiError where somebody does, at once."""
    stop = asyncio.ensure_future(aborted.wait())
    step: asyncio.Future[Delta] | None = None
    try:
        while True:
            step = asyncio.ensure_future(anext(deltas))
            await asyncio.wait((step, stop), return_when=asyncio.FIRST_COMPLETED)
            if not step.done():
                raise ApiError(499, "The request was aborted.", code="aborted")
            try:
                delta = step.result()
            except StopAsyncIteration:
                return
            yield delta
    finally:
        for task in (stop, *(() if step is None else (step,))):
            task.cancel()
        await asyncio.gather(stop, *(() if step is None else (step,)), return_exceptions=True)


def refusing(method: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """The method, whose ApiError ends the call with gRPC's status."""

    async def answer(sent: Any, context: Any) -> Any:
        try:
            return await method(sent, context)
        except ApiError as error:
            await refuse(context, error)

    return answer


async def refuse(context: Any, error: ApiError) -> None:
    import grpc

    code = getattr(grpc.StatusCode, CODES.get(error.status, "INTERNAL"))
    told = {
        "x-loraplex-param": error.param,
        "x-loraplex-code": error.code,
        "retry-after": error.headers.get("retry-after"),
    }
    trailing = tuple((name, str(value)) for name, value in told.items() if value is not None)
    await context.abort(code, error.message, trailing)
