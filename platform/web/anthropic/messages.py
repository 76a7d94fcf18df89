"""POST /v1/messages: a chat, asked and answered in Anthropic's blocks."""

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ..endpoints.dependencies import CallerWithRoom, InferenceOf, request_id_of
from ..http.errors import ApiError
from ..http.json_body import convert, read_json
from ..inference.answer import answer
from ..inference.resolve import Served
from ..inference.spec import GenerationSpec
from ..openai.chat import ChatCall
from ..openai.fields import ignored_header, note_model
from ..openai.schemas import ChatRequest
from ..openai.tools.answer_reader import Reading
from ..openai.translated.message_places import MessagePlaces
from ..settings.settings import Settings
from ..text.text_processor import TextProcessor
from .as_chat import chat_of, explain_refusal
from .conversation import conversation_of
from .errors import MESSAGES, REQUEST_ID
from .fields import check_members
from .format import PING, MessagesFormat
from .schemas import MessagesPrompt, MessagesRequest

router = APIRouter(tags=["Anthropic"])
Fields = TypeVar("Fields", bound=MessagesPrompt)


@router.post(MESSAGES)
async def create_message(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """An answer to a conversation in blocks, whole or as a stream of events. `model` names an adapter or the base."""
    fields, sent, headers = await read_message(request, inference.settings.body_timeout, MessagesRequest)
    conversation = conversation_of(fields)
    chat, members = chat_of(fields, conversation, sent)
    call = MessagesCall(ChatCall(chat, members), conversation, request_id_of(request))
    return await answer(request, inference, caller, call, headers, PING)


async def read_message(
    request: Request, body_timeout: float, schema: type[Fields]
) -> tuple[Fields, frozenset[str], dict[str, str]]:
    """The body, the names of its members, and response headers."""
    body = await read_json(request, body_timeout)
    ignored = check_members(body, schema.__struct_fields__)
    fields = convert(body, schema)
    note_model(request, fields.model)
    return fields, frozenset(body), {REQUEST_ID: request_id_of(request), **ignored_header(ignored)}


@dataclass(frozen=True, slots=True)
class MessagesCall:
    """`chat`: the same request as a chat."""

    wants_text: ClassVar[bool] = True
    chat: ChatCall
    conversation: MessagePlaces
    request_id: str

    @property
    def fields(self) -> ChatRequest:
        return self.chat.fields

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        return await self.chat.render(text_processor, settings)

    def spec(
        self, served: Served, prompts: list[list[int]], max_model_len: int
    ) -> tuple[GenerationSpec, MessagesFormat]:
        """Clients must send `max_tokens`, and often send a large one: it is cut down to what there is room for."""
        fields, room = self.fields, max(1, max_model_len - len(prompts[0]))
        assert fields.max_tokens is not None, "it is required"
        is_at_the_end = fields.max_tokens > room
        chat = replace(self.chat, fields=msgspec.structs.replace(fields, max_tokens=min(fields.max_tokens, room)))
        plan = chat.plan(served, prompts, max_model_len)
        return plan.spec, MessagesFormat(fields.model, plan.reading, self.request_id, is_at_the_end)

    def explain_refusal(self, error: ApiError) -> ApiError:
        return explain_refusal(error, self.conversation)

    def ending(self, error: ApiError | None) -> bytes:
        return MessagesFormat(self.fields.model, Reading(), self.request_id).ending(error)
