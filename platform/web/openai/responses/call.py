"""POST /v1/responses: a chat, asked and answered in items."""

from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...endpoints.dependencies import CallerWithRoom, InferenceOf
from ...http.errors import ApiError, invalid
from ...http.json_body import convert, read_json
from ...inference.answer import answer
from ...inference.resolve import Served
from ...inference.spec import GenerationSpec
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
from .schemas import ResponsesRequest

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/responses")
async def create_response(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """An answer to a conversation in items, whole or as a stream of events. Nothing of it is kept."""
    body = await read_json(request, inference.settings.body_timeout)
    ignored = check_members(body)
    fields = convert(body, ResponsesRequest)
    note_model(request, fields.model)
    _check(fields)
    conversation = Conversation(fields)
    chat, members = chat_of(fields, conversation, frozenset(body))
    check_chat(chat)
    call = ResponsesCall(fields, conversation, ChatCall(chat, members))
    return await answer(request, inference, caller, call, ignored_header(ignored))


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """`chat`: the same request as a chat."""

    asked: ResponsesRequest
    conversation: Conversation
    chat: ChatCall

    @property
    def fields(self) -> ChatRequest:
        return self.chat.fields

    async def render(self, text_processor: TextProcessor, settings: Settings) -> list[list[int]]:
        return await self.chat.render(text_processor, settings)

    def spec(
        self, served: Served, prompts: list[list[int]], max_model_len: int
    ) -> tuple[GenerationSpec, ResponsesFormat]:
        plan = self.chat.plan(served, prompts, max_model_len)
        return plan.spec, ResponsesFormat(self.asked, plan.fields, plan.reading)

    def explain_refusal(self, error: ApiError) -> ApiError:
        return explain_refusal(error, self.conversation)

    def ending(self, error: ApiError | None) -> bytes:
        return ResponsesFormat(self.asked, self.fields, Reading()).ending(error)


def _check(fields: ResponsesRequest) -> None:
    if fields.wants_logprobs and fields.tools and fields.tool_choice != "none":
        name = "top_logprobs" if fields.top_logprobs is not None else "include"
        words = f"{name}: log-probabilities are not available for a response that may call tools. Leave out one"
        raise invalid(f"{words}, or send tool_choice: none.", name, "unsupported")
