"""POST /api/generate: one prompt, in the model's chat template or raw."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..endpoints.dependencies import CallerWithRoom, InferenceOf
from ..http.errors import invalid
from ..openai.chat import ChatCall
from ..openai.completions import CompletionCall
from .as_chat import chat_of, completion_of
from .call import OllamaCall, answer_call, answer_empty, read_body
from .schemas import OllamaGenerate

router = APIRouter(tags=["Ollama"])


@router.post("/api/generate")
async def generate(request: Request, inference: InferenceOf, caller: CallerWithRoom) -> Response:
    """An answer to a prompt, as lines of JSON unless `stream` is false. With `raw` the prompt is used as it is."""
    fields, headers = await read_body(request, inference.settings.body_timeout, OllamaGenerate)
    if fields.raw and fields.system:
        words = "system is for the chat template, which raw leaves out. Put it into the prompt, or leave raw out."
        raise invalid(words, "system", "unsupported")
    if not fields.prompt:
        return answer_empty(inference, caller, fields, {"response": ""})
    inner = CompletionCall(*completion_of(fields)) if fields.raw else ChatCall(*chat_of(fields))
    return await answer_call(request, inference, caller, OllamaCall(fields, inner, as_message=False), headers)
