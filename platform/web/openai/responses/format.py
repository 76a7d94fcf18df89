"""ResponsesFormat: the answer in items, whole or as a stream of events."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from loraplex.engine.protocol import TokenLogprob

from ...http.errors import ApiError
from ...http.event_stream import event
from ...inference.generation import Answers, Delta, Generation
from ...quotas.meters import Usage
from ...tool_calls.events import Event, Words
from ..logprobs import chat_logprobs
from ..schemas import ChatRequest
from ..tools.answer_reader import AnswerReader, Reading
from .document import Document
from .memory import Keeping
from .output import Output, Told
from .schemas import ResponsesRequest

IN_PROGRESS: Final = "response.in_progress"


class ResponsesFormat:
    def __init__(
        self, asked: ResponsesRequest, chat: ChatRequest, reading: Reading, keeping: Keeping | None = None
    ) -> None:
        """`chat`: the request as a chat, with what the serving profile says for it. `keeping`: None, it is not kept."""
        self._reader = AnswerReader(reading)
        self._keeping, self._final = keeping, dict[str, Any]()
        self._document = Document(asked, chat, None if keeping is None else keeping.id)
        self._output = Output()
        self._entries, self._shown = list[TokenLogprob](), 0
        """Log-probabilities of all tokens, and how many of them need not be looked at again."""
        self._status = "in_progress"
        self._told = 0
        """Events of the stream."""

    def document(self, generations: Sequence[Generation], answers: Answers) -> dict[str, Any]:
        [choice], [generation] = answers.choices, generations
        parts, finish_reason = self._reader.read(0, choice)
        self._push(parts, choice.logprobs, generation)
        self._end(finish_reason)
        self._final = self._now(self._reader.counted(answers.usage))
        return self._final

    def events(self, delta: Delta, generation: Generation) -> bytes:
        begun = (
            b"" if self._told else self._encoded([self._about_all("response.created"), self._about_all(IN_PROGRESS)])
        )
        parts, finish_reason = self._reader.push(delta)
        told = self._push(parts, delta.logprobs or [], generation)
        if finish_reason is not None:
            told += self._end(finish_reason)
        return begun + self._encoded(told)

    async def keep(self, usage: Usage) -> None:
        """Once it is complete. Where it cannot be kept, the document says so."""
        if self._keeping is not None:
            self._final = self._final or self._now(self._reader.counted(usage))
            self._final["store"] = await self._keeping.keep(self._final)

    def last_events(self, usage: Usage) -> bytes:
        final = self._final or self._now(self._reader.counted(usage))
        return self._encoded([{"type": f"response.{self._status}", "response": final}])

    def ending(self, error: ApiError | None) -> bytes:
        """The openai package raises on the first of the two; others read the second."""
        if error is None:
            return b""
        self._status = "failed"
        told = {**error.fields(), "type": "error", "error": error.fields()}
        failed = {"type": "response.failed", "response": self._now(error=error)}
        return self._encoded([told, *self._output.close("incomplete"), failed])

    def _push(self, parts: list[Event], entries: list[TokenLogprob], generation: Generation) -> list[Told]:
        logprobs = self._logprobs(entries, generation)
        if logprobs and not any(isinstance(part, Words) for part in parts):
            parts = [*parts, Words("")]
        told = list[Told]()
        for part in parts:
            told += self._output.push(part, logprobs if isinstance(part, Words) else [])
        return told

    def _logprobs(self, entries: list[TokenLogprob], generation: Generation) -> list[dict[str, Any]]:
        """Of the tokens that are new and known to be no reasoning."""
        self._entries += entries
        if not self._reader.speaks:
            return []
        first, self._shown = max(self._shown, self._reader.reasoning_tokens), len(self._entries)
        told = chat_logprobs(self._entries[first:], generation.text_processor.token_text)
        content: list[dict[str, Any]] = told["content"]
        return content

    def _end(self, finish_reason: str | None) -> list[Told]:
        self._status = "incomplete" if finish_reason == "length" else "completed"
        return self._output.end(self._status)

    def _now(self, usage: Usage | None = None, error: ApiError | None = None) -> dict[str, Any]:
        return self._document.at(self._status, self._output.items, usage, error)

    def _about_all(self, kind: str) -> Told:
        return {"type": kind, "response": self._now()}

    def _encoded(self, told: list[Told]) -> bytes:
        events = b""
        for members in told:
            events += event(msgspec.json.encode(members | {"sequence_number": self._told}), members["type"])
            self._told += 1
        return events
