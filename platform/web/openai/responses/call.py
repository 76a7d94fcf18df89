"""POST /v1/responses: a chat, asked and answered in items."""

from dataclasses import dataclass
from typing import ClassVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.registry.stored_responses import StoredResponses

from ...access.caller import Caller
from ...endpoints.dependencies import CallerWithRoom, InferenceOf, RegistryOf
from ...http.errors import ApiError, invalid
from ...http.json_body import convert, read_json
from ...inference.answer import answer
from ...inference.call import Format
from ...inference.resolve import Served
from ...inference.spec import GenerationSpec
from ...quotas.meters import Usage
from ...settings.settings import Settings
from ...text.text_processor import TextProcessor
from ..chat import ChatCall, check_chat
from ..fields import ignored_header, note_model
from ..schemas import ChatRequest
from ..tools.answer_reader import Reading
from .as_chat import chat_of, explain_refusal
from .conversation import Conversation
from .fields import check_members
from .format import ResponsesFormat
from .memory import Keeping, earlier
from .output import new_id
from .schemas import ResponsesRequest

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/responses")
async def create_response(
    request: Request, inference: InferenceOf, registry: RegistryOf, caller: CallerWithRoom
) -> Response:
    """An answer to a conversation in items, whole or as a stream of events. It is kept unless `store` is false."""
    call, headers = await read_response(request, inference.settings, registry.responses, caller)
    return await answer(request, inference, caller, call, headers, keep=keep)


async def read_response(
    request: Request, settings: Settings, store: StoredResponses, caller: Caller
) -> tuple["ResponsesCall", dict[str, str]]:
    """The request, and headers that name what is ignored of it. Raises ApiError."""
    body = await read_json(request, settings.body_timeout)
    ignored = check_members(body)
    fields = convert(body, ResponsesRequest)
    note_model(request, fields.model)
    _check(fields)
    before = await earlier(store, caller, fields.previous_response_id, settings)
    conversation = Conversation(fields, before.items)
    chat, members = chat_of(fields, conversation, frozenset(body))
    check_chat(chat)
    keeping = None
    if fields.store and settings.response_days:
        id = f"resp_{caller.line}" if caller.line else new_id("resp")
        keeping = Keeping(id, store, caller.tenant, caller.actor, body["input"], before.ids)
    return ResponsesCall(fields, conversation, ChatCall(chat, members), keeping), ignored_header(ignored)


async def keep(answer_format: Format, usage: Usage) -> None:
    """Before the client hears that it is complete: the next request may follow it."""
    assert isinstance(answer_format, ResponsesFormat)
    await answer_format.keep(usage)


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """`chat`: the same request as a chat."""

    wants_text: ClassVar[bool] = True
    asked: ResponsesRequest
    conversation: Conversation
    chat: ChatCall
    keeping: Keeping | None

    @property
    def fields(self) -> ChatRequest:
        return self.chat.fields

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        return await self.chat.render(text_processor, settings)

    def spec(
        self, served: Served, prompts: list[list[int]], max_model_len: int
    ) -> tuple[GenerationSpec, ResponsesFormat]:
        plan = self.chat.plan(served, prompts, max_model_len)
        return plan.spec, ResponsesFormat(self.asked, plan.fields, plan.reading, self.keeping)

    def explain_refusal(self, error: ApiError) -> ApiError:
        return explain_refusal(error, self.conversation)

    def ending(self, error: ApiError | None) -> bytes:
        return ResponsesFormat(self.asked, self.fields, Reading(), self.keeping).ending(error)


def _check(fields: ResponsesRequest) -> None:
    if fields.wants_logprobs and fields.tools and fields.tool_choice != "none":
        name = "top_logprobs" if fields.top_logprobs is not None else "include"
        words = f"{name}: log-probabilities are not available for a response that may call tools. Leave out one"
        raise invalid(f"{words}, or send tool_choice: none.", name, "unsupported")
