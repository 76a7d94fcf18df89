"""POST /v1/chat/completions."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ..access.caller import Caller
from ..endpoints.dependencies import CallerWithRoom, RequestId, StateOf
from ..http.errors import invalid
from ..inference.generation import Answers, Completion, Delta, Generation
from ..inference.resolve import Served, find_served
from ..inference.serving import GenerationSpec, start_generations
from ..quotas.quotas import Admission
from ..state import State
from ..text.token_text import TokenText
from ..tool_calls.events import Event, Words
from ..tool_calls.reader import CallReader
from .calls import answer, read_fields
from .chunks import ChunkedCall, head
from .logprobs import chat_logprobs, prompt_logprobs
from .profile_defaults import filled, output_tokens
from .prompts import chat_prompt
from .schemas import ChatRequest
from .tools.tool_answers import delta_of, finish_reason_of, is_cut, whole_message
from .tools.tool_use import ToolUse, plan_tools

router = APIRouter(tags=["OpenAI"])
encode = msgspec.json.encode
ID_PREFIX: Final = "chatcmpl"


@router.post("/v1/chat/completions")
async def create_chat_completion(
    request: Request, state: StateOf, caller: CallerWithRoom, request_id: RequestId
) -> Response:
    """An answer to a conversation, whole or as a stream. `model` names an adapter or the base."""
    fields, sent, headers = await read_fields(request, state, ChatRequest)
    return await answer(request, state, caller, ChatCall(state, caller, fields, sent, request_id), headers)


class ChatCall(ChunkedCall):
    def __init__(
        self, state: State, caller: Caller, fields: ChatRequest, sent: frozenset[str], request_id: str
    ) -> None:
        """`sent`: members of the body; the serving profile has a say on the others."""
        super().__init__(ID_PREFIX, "chat.completion.chunk", fields)
        self.fields = self.filled = fields
        self._sent = sent
        self.served: Served | None = None
        self._state = state
        self._caller = caller
        self._request_id = request_id
        self._greeted: set[int] = set()
        self._tools: ToolUse | None = None
        self._readers: dict[int, CallReader] = {}
        """Of a stream's choices."""
        _check(fields)

    async def start(self, admission: Admission) -> list[Generation]:
        fields, caller = self.fields, self._caller
        completion = fields.max_completion_tokens
        asked, field = (
            (fields.max_tokens, "max_tokens") if completion is None else (completion, "max_completion_tokens")
        )
        logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
        served = self.served = await find_served(
            self._state,
            fields.model,
            fields.adapter_scales(),
            caller.tenant,
            caller.only,
            fields.asker(caller.actor, self._request_id),
        )
        prompt = await chat_prompt(self._state, served.text_processor, fields)
        max_tokens = output_tokens(served.profile, asked, None, self._state.max_model_len - len(prompt), field)
        whole = self.filled = filled(fields, self._sent, served.profile)
        params, tools = (
            whole.sampling(max_tokens, logprobs, fields.prompt_logprobs),
            plan_tools(whole, served.text_processor),
        )
        explain_refusal, self._tools = None, tools
        if tools is not None:
            form = tools.form(whole)
            params = msgspec.structs.replace(params, structured_outputs=form)
            explain_refusal = None if form is None else partial(tools.explain_refusal, form)
        spec = GenerationSpec(
            served=served,
            prompts=[prompt],
            params=params,
            shown_tokens=frozenset() if tools is None else tools.markers,
            explain_refusal=explain_refusal,
            prompt_field="messages",
            max_tokens_field=field,
            priority=fields.priority,
            cache_salt=fields.cache_salt or "",
        )
        return await start_generations(self._state, caller, spec, self._request_id, admission)

    def repeat(self, state: State, caller: Caller, changes: Mapping[str, Any]) -> "ChatCall":
        fields = msgspec.structs.replace(self.fields, **changes)
        return ChatCall(state, caller, fields, self._sent | changes.keys(), self._request_id)

    def document(self, generations: list[Generation], answers: Answers) -> dict[str, Any]:
        text = generations[0].text_processor.token_text
        choices = [self._choice(index, choice, text) for index, choice in enumerate(answers.choices)]
        document = head(ID_PREFIX, "chat.completion", self.fields.model) | {"choices": choices}
        if self.fields.prompt_logprobs is not None:
            document["prompt_logprobs"] = prompt_logprobs(answers.prompt_logprobs[0], text)
        return document | {"usage": answers.usage.as_json()}

    def events(self, delta: Delta, generation: Generation) -> bytes:
        index, usage, chunks, events = delta.index, generation.usage, self.chunks, b""
        if index not in self._greeted:
            self._greeted.add(index)
            events = chunks.of_choice(_chunk(index, b'{"role":"assistant","content":""}', b"null"), usage)
        logprobs = b"null"
        if delta.logprobs:
            logprobs = encode(chat_logprobs(delta.logprobs, generation.text_processor.token_text))
        parts, finish_reason = self.parts_of(delta)
        for part in [delta_of(part) for part in parts] or ([b"{}"] if delta.logprobs else []):
            events += chunks.of_choice(_chunk(index, part, logprobs), usage)
            logprobs = b"null"
        if finish_reason is not None:
            events += chunks.of_choice(encode(_last_chunk(index, finish_reason, delta.stop_reason)), usage)
        return events

    def parts_of(self, delta: Delta) -> tuple[list[Event], str | None]:
        """What is new of a choice of a stream, and how it ended, once it has."""
        finish_reason = delta.finish_reason
        if self._tools is None:
            return [Words(delta.text)] if delta.text or delta.logprobs else [], finish_reason
        reader = self._readers.setdefault(delta.index, self._tools.reader(eager=True))
        parts = reader.push(delta.text)
        if finish_reason is not None:
            parts += reader.end(is_cut(finish_reason, delta.stop_reason))
        return parts, finish_reason_of(reader, finish_reason)

    def all_parts_of(self, choice: Completion) -> tuple[list[Event], str | None]:
        """A whole choice, and how it ended."""
        finish_reason = choice.finish_reason
        if self._tools is None:
            return [Words(choice.text)], finish_reason
        reader = self._tools.reader(eager=False)
        parts = reader.push(choice.text) + reader.end(is_cut(finish_reason, choice.stop_reason))
        return parts, finish_reason_of(reader, finish_reason)

    def _choice(self, index: int, choice: Completion, text: TokenText) -> dict[str, Any]:
        logprobs = chat_logprobs(choice.logprobs, text) if self.fields.logprobs else None
        parts, finish_reason = self.all_parts_of(choice)
        return {
            "index": index,
            "message": whole_message(parts),
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": choice.stop_reason,
        }


def _chunk(index: int, delta: bytes, logprobs: bytes) -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}' % (index, delta, logprobs)


def _last_chunk(index: int, finish_reason: str, stop_reason: int | str | None) -> dict[str, Any]:
    return {
        "index": index,
        "delta": {},
        "logprobs": None,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
    }


def _check(fields: ChatRequest) -> None:
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid("top_logprobs needs logprobs: true.", "top_logprobs")
    both = fields.max_tokens is not None and fields.max_completion_tokens is not None
    if both and fields.max_tokens != fields.max_completion_tokens:
        raise invalid("max_tokens and max_completion_tokens differ; send one of them.", "max_tokens")
    if fields.stream and fields.prompt_logprobs is not None:
        raise invalid("prompt_logprobs cannot be streamed; leave it out, or set stream to false.", "prompt_logprobs")
