"""A request of Ollama's API as a chat or a completion, and refusals of that in the request's own terms."""

import re
from typing import Any, Final

import msgspec

from ..http.errors import ApiError
from ..inference.speaks import EMBEDDINGS
from ..openai.response_format import JsonObjectFormat, JsonSchema, JsonSchemaFormat, ResponseFormat
from ..openai.schemas import ChatMessage, ChatRequest, CompletionRequest
from ..openai.tools.tools import OTHER_CHOICE, CalledFunction, ToolCall
from ..openai.translated.refusals import in_terms_of
from .options import RENAMED, sampling_of
from .schemas import Asked, Message, OllamaChat, OllamaGenerate

LATEST: Final = ":latest"
"""The tag that clients put behind a name that has none."""
WORDS: Final = {
    "max_tokens": "options.num_predict",
    "response_format": "format",
    **{ours: f"options.{theirs}" for theirs, ours in RENAMED.items()},
}


def name_of(model: str) -> str:
    return model.removesuffix(LATEST) or model


def chat_of(fields: OllamaChat | OllamaGenerate) -> tuple[ChatRequest, frozenset[str]]:
    """And the members that it would have been sent with."""
    messages = _messages(fields) if isinstance(fields, OllamaChat) else _turn(fields)
    given = _shared(fields)
    if isinstance(fields, OllamaChat) and fields.tools:
        given["tools"] = fields.tools
    if fields.logprobs:
        given |= {"logprobs": True, "top_logprobs": fields.top_logprobs}
    if fields.think is not None:
        given["chat_template_kwargs"] = {"enable_thinking": fields.think is not False}
    goes_on = isinstance(fields, OllamaChat) and messages[-1].role == "assistant"
    chat = ChatRequest(
        **given,
        model=name_of(fields.model),
        stream=fields.stream,
        messages=messages,
        continue_final_message=goes_on,
        include_reasoning=fields.think is not False,
    )
    return chat, frozenset(given)


def completion_of(fields: OllamaGenerate) -> tuple[CompletionRequest, frozenset[str]]:
    """Of a raw prompt."""
    given = _shared(fields)
    if fields.logprobs:
        given["logprobs"] = fields.top_logprobs
    completion = CompletionRequest(**given, model=name_of(fields.model), stream=fields.stream, prompt=fields.prompt)
    return completion, frozenset(given)


def explain_refusal(error: ApiError, is_prompt: bool) -> ApiError:
    """A refusal of what the request became. `is_prompt`: it had one prompt instead of messages."""

    def said(text: str) -> str:
        text = text.replace(OTHER_CHOICE, "Or leave tools out.").replace(EMBEDDINGS, "/api/embed")
        if is_prompt:
            text = re.sub(r"\bmessages(\[\d+\](\.content)?)?(?![\w.\[])", "prompt", text)
        for ours, theirs in WORDS.items():
            text = re.sub(rf"(?<![\w.]){ours}\b(?!=)", theirs, text)
        return text

    return in_terms_of(error, said)


def _shared(fields: Asked) -> dict[str, Any]:
    form = _form(fields)
    return sampling_of(fields) | ({} if form is None else {"response_format": form})


def _form(fields: Asked) -> ResponseFormat | None:
    if isinstance(fields.format, dict):
        return JsonSchemaFormat(JsonSchema(name="output", schema=fields.format))
    return JsonObjectFormat() if fields.format else None


def _turn(fields: OllamaGenerate) -> list[ChatMessage]:
    system = [ChatMessage(role="system", content=fields.system)] if fields.system else []
    return [*system, ChatMessage(role="user", content=fields.prompt)]


def _messages(fields: OllamaChat) -> list[ChatMessage]:
    """Calls get ids, which Ollama's often have not. Results name the tool, or follow the calls in their order."""
    open_calls: list[tuple[str, str]] = []
    found = []
    for place, message in enumerate(fields.messages):
        role = message.role.lower()
        chat = ChatMessage(role=role, content=message.content, reasoning_content=message.thinking)
        if message.tool_calls:
            chat.tool_calls = _calls(message, place)
            open_calls += [(call.id, call.function.name) for call in chat.tool_calls]
        if role == "tool":
            chat.tool_call_id = message.tool_call_id or _answered(message, open_calls)
        found.append(chat)
    return found


def _calls(message: Message, place: int) -> list[ToolCall]:
    return [
        ToolCall(
            id=call.id or f"call_{place}_{number}",
            function=CalledFunction(
                name=call.function.name, arguments=msgspec.json.encode(call.function.arguments).decode()
            ),
        )
        for number, call in enumerate(message.tool_calls or ())
    ]


def _answered(message: Message, open_calls: list[tuple[str, str]]) -> str | None:
    """The id of the call that a result belongs to, which is then answered."""
    name = message.tool_name or message.name
    at = next((at for at, (_, called) in enumerate(open_calls) if name in (None, called)), None)
    return None if at is None else open_calls.pop(at)[0]
