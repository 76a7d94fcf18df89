"""POST /v1/responses: a chat, asked and answered in items."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ...access.caller import Caller
from ...endpoints.dependencies import CallerWithRoom, RequestId, StateOf
from ...http.errors import ApiError, invalid
from ...http.event_stream import event
from ...http.json_body import convert, read_json
from ...inference.generation import Answers, Delta, Generation
from ...inference.resolve import Served
from ...quotas.meters import Usage
from ...quotas.quotas import Admission
from ...state import State
from ..calls import answer, note_model
from ..chat import ChatCall
from ..fields import ignored_header
from ..logprobs import chat_logprobs
from ..schemas import GenerationFields
from .as_chat import chat_of, explain_refusal
from .conversation import Conversation
from .document import Document
from .fields import check_members
from .output import Output, Told
from .schemas import ResponsesRequest

IN_PROGRESS: Final = "response.in_progress"
router = APIRouter(tags=["OpenAI"])


@router.post("/v1/responses")
async def create_response(request: Request, state: StateOf, caller: CallerWithRoom, request_id: RequestId) -> Response:
    """An answer to a conversation in items, whole or as a stream of events. Nothing of it is kept."""
    body = await read_json(request, state.settings.body_timeout)
    ignored = check_members(body)
    fields = convert(body, ResponsesRequest)
    note_model(request, fields.model)
    _check(fields)
    call = ResponsesCall(state, caller, fields, frozenset(body), request_id)
    return await answer(request, state, caller, call, ignored_header(ignored))


class ResponsesCall:
    def __init__(
        self, state: State, caller: Caller, fields: ResponsesRequest, sent: frozenset[str], request_id: str
    ) -> None:
        """`sent`: members of the body. Raises ApiError that names the item at fault."""
        self._conversation = Conversation(fields)
        chat, members = chat_of(fields, self._conversation, sent)
        self._chat = ChatCall(state, caller, chat, members, request_id)
        self._wants_logprobs = fields.wants_logprobs
        self._document = Document(fields)
        self._output = Output()
        self._status = "in_progress"
        self._told = 0
        """Events of the stream."""

    @property
    def fields(self) -> GenerationFields:
        return self._chat.fields

    @property
    def served(self) -> Served | None:
        return self._chat.served

    async def start(self, admission: Admission) -> list[Generation]:
        return await self._chat.start(admission)

    def repeat(self, state: State, caller: Caller, changes: Mapping[str, Any]) -> ChatCall:
        return self._chat.repeat(state, caller, changes)

    def document(self, generations: list[Generation], answers: Answers) -> dict[str, Any]:
        [choice], [generation] = answers.choices, generations
        parts, finish_reason = self._chat.all_parts_of(choice)
        logprobs = chat_logprobs(choice.logprobs, generation.text_processor.token_text)["content"]
        for part in parts:
            self._output.push(part, logprobs)
        self._end(finish_reason)
        return self._now(answers.usage)

    def events(self, delta: Delta, generation: Generation) -> bytes:
        begun = (
            b"" if self._told else self._encoded([self._about_all("response.created"), self._about_all(IN_PROGRESS)])
        )
        told = list[Told]()
        parts, finish_reason = self._chat.parts_of(delta)
        logprobs = chat_logprobs(delta.logprobs or [], generation.text_processor.token_text)["content"]
        for part in parts:
            told += self._output.push(part, logprobs)
        if finish_reason is not None:
            told += self._end(finish_reason)
        return begun + self._encoded(told)

    def last_events(self, usage: Usage) -> bytes:
        return self._encoded([self._about_all(f"response.{self._status}", usage)])

    def ending(self, error: ApiError | None) -> bytes:
        """The openai package raises on the first of the two; others read the second."""
        if error is None:
            return b""
        self._status = "failed"
        told = {**error.fields(), "type": "error", "error": error.fields()}
        failed = {"type": "response.failed", "response": self._now(error=error)}
        return self._encoded([told, *self._output.close("incomplete"), failed])

    def explain_refusal(self, error: ApiError) -> ApiError:
        return explain_refusal(error, self._conversation)

    def _end(self, finish_reason: str | None) -> list[Told]:
        self._status = "incomplete" if finish_reason == "length" else "completed"
        return self._output.end(self._status)

    def _now(self, usage: Usage | None = None, error: ApiError | None = None) -> dict[str, Any]:
        return self._document.at(self._status, self._chat.filled, self._output.items, usage, error)

    def _about_all(self, kind: str, usage: Usage | None = None) -> Told:
        return {"type": kind, "response": self._now(usage)}

    def _encoded(self, told: list[Told]) -> bytes:
        events = b""
        for members in told:
            events += event(msgspec.json.encode(members | {"sequence_number": self._told}), members["type"])
            self._told += 1
        return events


def _check(fields: ResponsesRequest) -> None:
    if fields.wants_logprobs and fields.tools and fields.tool_choice != "none":
        name = "top_logprobs" if fields.top_logprobs is not None else "include"
        words = f"{name}: log-probabilities are not available for a response that may call tools. Leave out one"
        raise invalid(f"{words}, or send tool_choice: none.", name, "unsupported")
