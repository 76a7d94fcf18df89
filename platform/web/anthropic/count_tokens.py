"""POST /v1/messages/count_tokens: how many tokens a message's prompt has, without an answer."""

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from ..endpoints.dependencies import CallerOf, InferenceOf
from ..http.errors import ApiError
from ..inference.resolve import find_served
from ..inference.speaks import check_speaks
from ..openai.prompts import chat_prompt
from .as_chat import chat_of, explain_refusal
from .conversation import conversation_of
from .errors import MESSAGES
from .messages import read_message
from .schemas import MessagesPrompt

router = APIRouter(tags=["Anthropic"])


@router.post(f"{MESSAGES}/count_tokens")
async def count_tokens(request: Request, inference: InferenceOf, caller: CallerOf) -> Response:
    """Tokens of the prompt that these messages, system prompt and tools make."""
    settings = inference.settings
    fields, sent, headers = await read_message(request, settings.body_timeout, MessagesPrompt)
    conversation = conversation_of(fields)
    chat, _ = chat_of(fields, conversation, sent)
    try:
        served = await find_served(inference, caller, chat.model, chat.adapter_scales(), chat.asker(caller.actor))
        check_speaks(inference.engine)
        tokens = await chat_prompt(served.text_processor, chat, settings.max_prompt_chars)
    except ApiError as error:
        raise explain_refusal(error, conversation) from error
    return JSONResponse({"input_tokens": len(tokens)}, headers=headers)
