"""POST /v1/responses/input_tokens: how many tokens a response's prompt would have, without an answer."""

from typing import Any

from fastapi import APIRouter, Request

from ...endpoints.dependencies import CallerOf, InferenceOf, RegistryOf
from ...http.errors import ApiError
from ...inference.resolve import find_served
from ...inference.speaks import check_speaks
from ..prompts import chat_prompt
from .call import read_response

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/responses/input_tokens", response_model=dict[str, Any])
async def count_input_tokens(
    request: Request, inference: InferenceOf, registry: RegistryOf, caller: CallerOf
) -> dict[str, Any]:
    """Tokens of the prompt that this input makes, with what it follows, its instructions and its tools."""
    call, _ = await read_response(request, inference.settings, registry.responses, caller)
    chat = call.fields
    try:
        served = await find_served(inference, caller, chat.model, chat.adapter_scales(), chat.asker(caller.actor))
        check_speaks(inference.engine)
        tokens = await chat_prompt(served.text_processor, chat, inference.settings.max_prompt_chars)
    except ApiError as error:
        raise call.explain_refusal(error) from error
    return {"object": "response.input_tokens", "input_tokens": len(tokens)}
