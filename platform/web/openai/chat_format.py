"""ChatFormat: the answer to a chat, whole or in chunks."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..inference.generation import Answers, Completion, Delta, Generation
from ..quotas.meters import Usage
from ..text.token_text import TokenText
from .chunks import ChunkedFormat, head
from .logprobs import chat_logprobs, prompt_logprobs
from .schemas import ChatRequest
from .tools.answer_reader import AnswerReader, Reading
from .tools.tool_answers import delta_of, function_delta_of, whole_message

encode = msgspec.json.encode
ID_PREFIX: Final = "chatcmpl"


class ChatFormat(ChunkedFormat):
    def __init__(self, fields: ChatRequest, reading: Reading) -> None:
        super().__init__(ID_PREFIX, "chat.completion.chunk", fields)
        self._fields = fields
        self._reader = AnswerReader(reading)
        self._in_functions = fields.functions is not None
        self._delta_of = function_delta_of if self._in_functions else delta_of
        self._greeted: set[int] = set()
        # Before calls and reasoning some clients would take an empty content for a text of its own.
        self._greeting = b'{"role":"assistant","content":""}' if reading.is_plain else b'{"role":"assistant"}'

    def document(self, generations: Sequence[Generation], answers: Answers) -> dict[str, Any]:
        text = generations[0].text_processor.token_text
        choices = [self._choice(index, choice, text) for index, choice in enumerate(answers.choices)]
        document = head(ID_PREFIX, "chat.completion", self._fields.model) | {"choices": choices}
        if self._fields.prompt_logprobs is not None:
            document["prompt_logprobs"] = prompt_logprobs(answers.prompt_logprobs[0], text)
        return document | {"usage": self._reader.counted(answers.usage).as_json()}

    def events(self, delta: Delta, generation: Generation) -> bytes:
        index, chunks, events = delta.index, self.chunks, b""
        parts, finish_reason = self._reader.push(delta)
        usage = self._reader.counted(generation.usage)
        if index not in self._greeted:
            self._greeted.add(index)
            events = chunks.of_choice(_chunk(index, self._greeting, b"null"), usage)
        logprobs = b"null"
        if delta.logprobs:
            logprobs = encode(chat_logprobs(delta.logprobs, generation.text_processor.token_text))
        for part in [self._delta_of(part) for part in parts] or ([b"{}"] if delta.logprobs else []):
            events += chunks.of_choice(_chunk(index, part, logprobs), usage)
            logprobs = b"null"
        if finish_reason is not None:
            ended = self._finish_reason(finish_reason)
            events += chunks.of_choice(encode(_last_chunk(index, ended, delta.stop_reason)), usage)
        return events

    def last_events(self, usage: Usage) -> bytes:
        return super().last_events(self._reader.counted(usage))

    def _choice(self, index: int, choice: Completion, text: TokenText) -> dict[str, Any]:
        logprobs = chat_logprobs(choice.logprobs, text) if self._fields.logprobs else None
        parts, finish_reason = self._reader.read(index, choice)
        return {
            "index": index,
            "message": whole_message(parts, self._in_functions),
            "logprobs": logprobs,
            "finish_reason": self._finish_reason(finish_reason),
            "stop_reason": choice.stop_reason,
        }

    def _finish_reason(self, reason: str | None) -> str | None:
        return "function_call" if self._in_functions and reason == "tool_calls" else reason


def _chunk(index: int, delta: bytes, logprobs: bytes) -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}' % (index, delta, logprobs)


def _last_chunk(index: int, finish_reason: str | None, stop_reason: int | str | None) -> dict[str, Any]:
    return {
        "index": index,
        "delta": {},
        "logprobs": None,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
    }
