"""ResponsesFormat: the answer in items, whole or as a stream of events."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ...http.errors import ApiError
from ...http.event_stream import event
from ...inference.generation import Answers, Delta, Generation
from ...quotas.meters import Usage
from ..logprobs import chat_logprobs
from ..schemas import ChatRequest
from ..tools.answer_reader import AnswerReader
from ..tools.tool_use import ToolUse
from .document import Document
from .output import Output, Told
from .schemas import ResponsesRequest

IN_PROGRESS: Final = "response.in_progress"


class ResponsesFormat:
    def __init__(self, asked: ResponsesRequest, chat: ChatRequest, tools: ToolUse | None) -> None:
        """`chat`: the request as a chat, with what the serving profile says for it."""
        self._reader = AnswerReader(tools)
        self._document = Document(asked, chat)
        self._output = Output()
        self._status = "in_progress"
        self._told = 0
        """Events of the stream."""

    def document(self, generations: Sequence[Generation], answers: Answers) -> dict[str, Any]:
        [choice], [generation] = answers.choices, generations
        parts, finish_reason = self._reader.read(choice)
        logprobs = chat_logprobs(choice.logprobs, generation.text_processor.token_text)["content"]
        for part in parts:
            self._output.push(part, logprobs)
        self._end(finish_reason)
        return self._now(answers.usage)

    def events(self, delta: Delta, generation: Generation) -> bytes:
        begun = (
            b"" if self._told else self._encoded([self._about_all("response.created"), self._about_all(IN_PROGRESS)])
        )
        told = list[Told]()
        parts, finish_reason = self._reader.push(delta)
        logprobs = chat_logprobs(delta.logprobs or [], generation.text_processor.token_text)["content"]
        for part in parts:
            told += self._output.push(part, logprobs)
        if finish_reason is not None:
            told += self._end(finish_reason)
        return begun + self._encoded(told)

    def last_events(self, usage: Usage) -> bytes:
        return self._encoded([self._about_all(f"response.{self._status}", usage)])

    def ending(self, error: ApiError | None) -> bytes:
        """The openai package raises on the first of the two; others read the second."""
        if error is None:
            return b""
        self._status = "failed"
        told = {**error.fields(), "type": "error", "error": error.fields()}
        failed = {"type": "response.failed", "response": self._now(error=error)}
        return self._encoded([told, *self._output.close("incomplete"), failed])

    def _end(self, finish_reason: str | None) -> list[Told]:
        self._status = "incomplete" if finish_reason == "length" else "completed"
        return self._output.end(self._status)

    def _now(self, usage: Usage | None = None, error: ApiError | None = None) -> dict[str, Any]:
        return self._document.at(self._status, self._output.items, usage, error)

    def _about_all(self, kind: str, usage: Usage | None = None) -> Told:
        return {"type": kind, "response": self._now(usage)}

    def _encoded(self, told: list[Told]) -> bytes:
        events = b""
        for members in told:
            events += event(msgspec.json.encode(members | {"sequence_number": self._told}), members["type"])
            self._told += 1
        return events
