"""OllamaFormat: the answer as Ollama gives it, in one document or in lines of JSON with the counts in the last."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ..http.errors import ApiError
from ..inference.generation import Answers, Completion, Delta, Generation
from ..observability.request_log import FinishedRequest
from ..openai.logprobs import chat_logprobs
from ..openai.tools.answer_reader import AnswerReader, Reading
from ..quotas.meters import Usage
from ..tool_calls.events import Arguments, Begun, Event, Reasoning, Words
from .errors import error_line

NANOSECONDS: Final = 1_000_000_000
Said = dict[str, Any]


class OllamaFormat:
    """`as_message`: the words are a message's, as of /api/chat; else `response`, as of /api/generate."""

    def __init__(self, model: str, reading: Reading, as_message: bool, logprobs: bool = False) -> None:
        self._model, self._as_message, self._logprobs = model, as_message, logprobs
        self._reader = AnswerReader(reading)
        self._call: dict[str, Any] | None = None
        """Being written. Clients get whole calls."""
        self._arguments = ""
        self._number = 0
        self._reason: str | None = None
        self._generation: Generation | None = None

    def document(self, generations: Sequence[Generation], answers: Answers) -> dict[str, Any]:
        [choice] = answers.choices
        self._generation = generations[0]
        parts, self._reason = self._reader.read(0, choice)
        said = _joined([*self._said(parts), *self._end_call()])
        return self._line(said, choice) | self._counts(answers.usage)

    def events(self, delta: Delta, generation: Generation) -> bytes:
        self._generation = generation
        parts, reason = self._reader.push(delta)
        told = self._said(parts)
        if reason is not None:
            self._reason = reason
            told += self._end_call()
        if not told and delta.logprobs:
            told = [{}]
        first = [self._line(said, delta if number == 0 else None) for number, said in enumerate(told)]
        return b"".join(_encoded(line | {"done": False}) for line in first)

    def last_events(self, usage: Usage) -> bytes:
        return _encoded(self._line({}, None) | self._counts(usage))

    def ending(self, error: ApiError | None) -> bytes:
        return error_line(error)

    def _said(self, parts: list[Event]) -> list[Said]:
        told = list[Said]()
        for part in parts:
            match part:
                case Reasoning():
                    told.append({"thinking": part.text})
                case Words():
                    told += [*self._end_call(), {"content": part.text}]
                case Begun():
                    told += self._end_call()
                    self._call, self._arguments = {"name": part.name}, ""
                case Arguments():
                    self._arguments += part.text
        return told

    def _end_call(self) -> list[Said]:
        """The open call, if there is one."""
        if self._call is None:
            return []
        call = {"function": {"index": self._number, **self._call, "arguments": _object(self._arguments)}}
        self._call, self._number = None, self._number + 1
        return [{"tool_calls": [call]}]

    def _line(self, said: Said, choice: Completion | Delta | None) -> dict[str, Any]:
        words = said.get("content", "")
        others: Said = {name: value for name, value in said.items() if name != "content"}
        body: dict[str, Any] = {"response": words, **others}
        if self._as_message:
            body = {"message": {"role": "assistant", "content": words, **others}}
        if self._logprobs and choice is not None and choice.logprobs:
            assert self._generation is not None
            text = self._generation.text_processor.token_text
            body["logprobs"] = chat_logprobs(choice.logprobs, text)["content"]
        return line_of(self._model, body)

    def _counts(self, usage: Usage) -> dict[str, Any]:
        finished = None if self._generation is None else self._generation.finished
        return {
            "done": True,
            "done_reason": "length" if self._reason == "length" else "stop",
            **durations(finished),
            "prompt_eval_count": usage.prompt_tokens,
            "eval_count": usage.completion_tokens,
        }


def line_of(model: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"model": model, "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"), **body}


def durations(finished: FinishedRequest | None) -> dict[str, int]:
    """`total_duration` also has the time in the queue."""
    if finished is None:
        return {}
    seconds = {"total_duration": finished.duration}
    if finished.phases is not None:
        phases = finished.phases
        seconds |= {
            "load_duration": phases.load,
            "prompt_eval_duration": phases.prefill,
            "eval_duration": phases.decode,
        }
    return {name: round(value * NANOSECONDS) for name, value in seconds.items()}


def _joined(said: list[Said]) -> Said:
    whole: Said = {}
    for part in said:
        for name, value in part.items():
            whole[name] = value if name not in whole else whole[name] + value
    return whole


def _object(text: str) -> dict[str, Any]:
    """Empty where a limit has cut it: `done_reason` says so."""
    try:
        decoded = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        decoded = {}
    return decoded if isinstance(decoded, dict) else {}


def _encoded(line: dict[str, Any]) -> bytes:
    return msgspec.json.encode(line) + b"\n"
