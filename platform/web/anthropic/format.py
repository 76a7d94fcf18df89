"""MessagesFormat: the answer in blocks, whole or as a stream of events."""

import uuid
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..http.errors import ApiError
from ..http.event_stream import event
from ..inference.generation import Answers, Completion, Delta, Generation
from ..openai.tools.answer_reader import AnswerReader, Reading
from ..quotas.meters import Usage
from .blocks import Blocks, Told
from .errors import error_event

PING: Final = event(b'{"type":"ping"}', "ping")


class MessagesFormat:
    def __init__(self, model: str, reading: Reading, request_id: str, is_at_the_end: bool = False) -> None:
        """`is_at_the_end`: the context ends before `max_tokens` do."""
        self._reader, self._blocks = AnswerReader(reading), Blocks()
        self._request_id, self._is_at_the_end = request_id, is_at_the_end
        self._message = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": model}
        self._end: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}
        self._begun = False

    def document(self, generations: Sequence[Generation], answers: Answers) -> dict[str, Any]:
        [choice] = answers.choices
        parts, finish_reason = self._reader.read(0, choice)
        for part in parts:
            self._blocks.push(part)
        self._finish(finish_reason, choice)
        return self._now(self._reader.counted(answers.usage))

    def events(self, delta: Delta, generation: Generation) -> bytes:
        told = list[Told]()
        if not self._begun:
            self._begun = True
            told.append({"type": "message_start", "message": self._now(generation.usage)})
        parts, finish_reason = self._reader.push(delta)
        for part in parts:
            told += self._blocks.push(part)
        if finish_reason is not None:
            told += self._finish(finish_reason, delta)
        return _encoded(told)

    def last_events(self, usage: Usage) -> bytes:
        ended = {"type": "message_delta", "delta": self._end, "usage": _usage(self._reader.counted(usage))}
        return _encoded([ended, {"type": "message_stop"}])

    def ending(self, error: ApiError | None) -> bytes:
        return b"" if error is None else error_event(error, self._request_id)

    def _now(self, usage: Usage) -> dict[str, Any]:
        return {**self._message, "content": self._blocks.blocks[:], **self._end, "usage": _usage(usage)}

    def _finish(self, finish_reason: str | None, choice: Completion | Delta) -> list[Told]:
        stopped = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        match finish_reason:
            case "length":
                reason = "model_context_window_exceeded" if self._is_at_the_end else "max_tokens"
            case "tool_calls":
                reason = "tool_use"
            case _:
                reason = "end_turn" if stopped is None else "stop_sequence"
        self._end = {"stop_reason": reason, "stop_sequence": stopped}
        return self._blocks.close()


def _usage(usage: Usage) -> dict[str, Any]:
    """Input tokens are those that were not read from the cache."""
    thought = {"output_tokens_details": {"thinking_tokens": usage.reasoning_tokens}} if usage.reasoning_tokens else {}
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        **thought,
    }


def _encoded(told: list[Told]) -> bytes:
    return b"".join(event(msgspec.json.encode(members), members["type"]) for members in told)
