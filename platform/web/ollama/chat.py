"""POST /api/chat: a conversation, answered in lines of JSON or in one document."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..endpoints.dependencies import CallerWithRoom, InferenceOf
from ..openai.chat import ChatCall
from .as_chat import chat_of
from .call import OllamaCall, answer_call, answer_empty, read_body
from .schemas import OllamaChat

router = APIRouter(tags=["Ollama"])


@router.post("/api/chat")
async def chat(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """An answer to a conversation, as lines of JSON unless `stream` is false. `model` names an adapter or the base."""
    fields, headers = await read_body(request, inference.settings.body_timeout, OllamaChat)
    if not fields.messages:
        return answer_empty(inference, caller, fields, {"message": {"role": "assistant", "content": ""}})
    return await answer_call(
        request, inference, caller, OllamaCall(fields, ChatCall(*chat_of(fields)), as_message=True), headers
    )
