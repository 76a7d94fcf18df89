"""POST /v1/completions."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.engine.protocol import TokenLogprob

from ..access.caller import Caller
from ..endpoints.dependencies import CallerWithRoom, RequestId, StateOf
from ..http.errors import invalid
from ..inference.generation import Answers, Completion, Delta, Generation
from ..inference.resolve import Served, find_served
from ..inference.serving import GenerationSpec, start_generations
from ..quotas.quotas import Admission
from ..state import State
from ..text.text_processor import TextProcessor
from .calls import answer, read_fields
from .chunks import ChunkedCall, head
from .logprobs import CompletionLogprobs, prompt_logprobs
from .profile_defaults import filled, output_tokens
from .prompts import completion_prompts
from .schemas import DEFAULT_COMPLETION_TOKENS, CompletionRequest

router = APIRouter(tags=["OpenAI"])
encode = msgspec.json.encode
KIND: Final = ("cmpl", "text_completion")
"""Prefix of an answer's id, and its `object`, that of chunks too."""


@router.post("/v1/completions")
async def create_completion(
    request: Request, state: StateOf, caller: CallerWithRoom, request_id: RequestId
) -> Response:
    """The continuation of one or more prompts, given as text or as token ids."""
    fields, sent, headers = await read_fields(request, state, CompletionRequest)
    return await answer(request, state, caller, CompletionCall(state, caller, fields, sent, request_id), headers)


class CompletionCall(ChunkedCall):
    def __init__(
        self, state: State, caller: Caller, fields: CompletionRequest, sent: frozenset[str], request_id: str
    ) -> None:
        """`sent`: members of the body; the serving profile has a say on the others."""
        super().__init__(*KIND, fields)
        self.fields = fields
        self._sent = sent
        self.served: Served | None = None
        self._state = state
        self._caller = caller
        self._request_id = request_id
        self._begun: dict[int, CompletionLogprobs] = {}
        _check(fields)

    async def start(self, admission: Admission) -> list[Generation]:
        fields, caller = self.fields, self._caller
        served = self.served = await find_served(
            self._state,
            fields.model,
            fields.adapter_scales(),
            caller.tenant,
            caller.only,
            fields.asker(caller.actor, self._request_id),
        )
        prompts = await completion_prompts(self._state, served.text_processor, fields)
        room = self._state.max_model_len - max(map(len, prompts))
        max_tokens = output_tokens(served.profile, fields.max_tokens, DEFAULT_COMPLETION_TOKENS, room, "max_tokens")
        assert max_tokens is not None, "there is a default"
        spec = GenerationSpec(
            served=served,
            prompts=prompts,
            params=filled(fields, self._sent, served.profile).sampling(
                max_tokens, fields.logprobs, self._prompt_logprobs(max_tokens)
            ),
            prompt_field="prompt",
            priority=fields.priority,
            cache_salt=fields.cache_salt or "",
        )
        return await start_generations(self._state, caller, spec, self._request_id, admission)

    def repeat(self, state: State, caller: Caller, changes: Mapping[str, Any]) -> "CompletionCall":
        fields = msgspec.structs.replace(self.fields, **changes)
        return CompletionCall(state, caller, fields, self._sent | changes.keys(), self._request_id)

    def document(self, generations: list[Generation], answers: Answers) -> dict[str, Any]:
        n = self.fields.n
        choices = [
            self._choice(index, choice, generations[index // n], answers.prompt_logprobs[index // n])
            for index, choice in enumerate(answers.choices)
        ]
        return head(*KIND, self.fields.model) | {"choices": choices, "usage": answers.usage.as_json()}

    def events(self, delta: Delta, generation: Generation) -> bytes:
        events, text = b"", delta.text
        if delta.index not in self._begun:
            self._begun[delta.index] = self._new_logprobs(generation.text_processor)
            text = self._echoed(generation) + text
        if text or delta.logprobs:
            logprobs = self._chunk_logprobs(delta)
            choice = b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null}' % (
                delta.index,
                encode(text),
                logprobs,
            )
            events = self.chunks.of_choice(choice, generation.usage)
        if delta.finish_reason is not None:
            events += self.chunks.of_choice(encode(_last_chunk(delta)), generation.usage)
        return events

    def _prompt_logprobs(self, max_tokens: int) -> int | None:
        """Echoed log-probabilities need the prompt's; an echo of nothing but the prompt is computed as such."""
        if self.fields.echo and (self.fields.logprobs is not None or max_tokens == 0):
            return max(self.fields.logprobs or 0, self.fields.prompt_logprobs or 0)
        return self.fields.prompt_logprobs

    def _choice(
        self, index: int, choice: Completion, generation: Generation, prompt_entries: list[TokenLogprob | None]
    ) -> dict[str, Any]:
        asked = self.fields.prompt_logprobs is not None
        return {
            "index": index,
            "text": self._echoed(generation) + choice.text,
            "logprobs": self._logprobs(choice, generation, prompt_entries),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "prompt_logprobs": prompt_logprobs(prompt_entries, generation.text_processor.token_text) if asked else None,
        }

    def _logprobs(
        self, choice: Completion, generation: Generation, prompt_entries: list[TokenLogprob | None]
    ) -> dict[str, Any] | None:
        if self.fields.logprobs is None:
            return None
        token_ids: list[int] = choice.token_ids
        entries: list[TokenLogprob | None] = [*choice.logprobs]
        if self.fields.echo:
            token_ids, entries = generation.prompt_token_ids + token_ids, [*prompt_entries, *entries]
        return self._new_logprobs(generation.text_processor).add(token_ids, entries, self.fields.logprobs)

    def _new_logprobs(self, text_processor: TextProcessor) -> CompletionLogprobs:
        hidden = text_processor.tokenizer.special_ids if self.fields.skip_special_tokens else ()
        return CompletionLogprobs(text_processor.token_text, hidden)

    def _chunk_logprobs(self, delta: Delta) -> bytes:
        if self.fields.logprobs is None or delta.logprobs is None:
            return b"null"
        return encode(self._begun[delta.index].add(delta.token_ids, delta.logprobs, self.fields.logprobs))

    def _echoed(self, generation: Generation) -> str:
        if not self.fields.echo:
            return ""
        return generation.text_processor.tokenizer.decode(generation.prompt_token_ids, self.fields.skip_special_tokens)


def _last_chunk(delta: Delta) -> dict[str, Any]:
    return {
        "index": delta.index,
        "text": "",
        "logprobs": None,
        "finish_reason": delta.finish_reason,
        "stop_reason": delta.stop_reason,
    }


def _check(fields: CompletionRequest) -> None:
    if fields.stream and fields.prompt_logprobs is not None:
        raise invalid("prompt_logprobs cannot be streamed; leave it out, or set stream to false.", "prompt_logprobs")
    if fields.stream and fields.echo and fields.logprobs is not None:
        raise invalid("echo with logprobs cannot be streamed; leave one out, or set stream to false.", "echo")
