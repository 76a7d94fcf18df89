"""CompletionFormat: the answer to a completion, whole or in chunks."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from loraplex.engine.protocol import TokenLogprob

from ..inference.generation import Answers, Completion, Delta, Generation
from ..text.text_processor import TextProcessor
from .chunks import ChunkedFormat, head
from .logprobs import CompletionLogprobs, prompt_logprobs
from .schemas import CompletionRequest

encode = msgspec.json.encode
KIND: Final = ("cmpl", "text_completion")
"""Prefix of an answer's id, and its `object`, that of chunks too."""


class CompletionFormat(ChunkedFormat):
    def __init__(self, fields: CompletionRequest) -> None:
        super().__init__(*KIND, fields)
        self._fields = fields
        self._begun: dict[int, CompletionLogprobs] = {}

    def document(self, generations: Sequence[Generation], answers: Answers) -> dict[str, Any]:
        n = self._fields.n
        choices = [
            self._choice(index, choice, generations[index // n], answers.prompt_logprobs[index // n])
            for index, choice in enumerate(answers.choices)
        ]
        return head(*KIND, self._fields.model) | {"choices": choices, "usage": answers.usage.as_json()}

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

    def _choice(
        self, index: int, choice: Completion, generation: Generation, prompt_entries: list[TokenLogprob | None]
    ) -> dict[str, Any]:
        asked = self._fields.prompt_logprobs is not None
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
        if self._fields.logprobs is None:
            return None
        token_ids: list[int] = choice.token_ids
        entries: list[TokenLogprob | None] = [*choice.logprobs]
        if self._fields.echo:
            token_ids, entries = generation.prompt_token_ids + token_ids, [*prompt_entries, *entries]
        return self._new_logprobs(generation.text_processor).add(token_ids, entries, self._fields.logprobs)

    def _new_logprobs(self, text_processor: TextProcessor) -> CompletionLogprobs:
        hidden = text_processor.tokenizer.special_ids if self._fields.skip_special_tokens else ()
        return CompletionLogprobs(text_processor.token_text, hidden)

    def _chunk_logprobs(self, delta: Delta) -> bytes:
        if self._fields.logprobs is None or delta.logprobs is None:
            return b"null"
        return encode(self._begun[delta.index].add(delta.token_ids, delta.logprobs, self._fields.logprobs))

    def _echoed(self, generation: Generation) -> str:
        if not self._fields.echo:
            return ""
        return generation.text_processor.tokenizer.decode(generation.prompt_token_ids, self._fields.skip_special_tokens)


def _last_chunk(delta: Delta) -> dict[str, Any]:
    return {
        "index": delta.index,
        "text": "",
        "logprobs": None,
        "finish_reason": delta.finish_reason,
        "stop_reason": delta.stop_reason,
    }
