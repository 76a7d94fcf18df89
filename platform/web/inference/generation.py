"""Generation: one prompt on its way through the engine, its tokens turned into text, counted and measured."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from loraplex.engine.ipc.client import EngineUnavailable, RequestRejected
from loraplex.engine.protocol import FinishReason, GenerateRequest, TokenLogprob, Tokens
from loraplex.engine.text.detokenizer import Detokenizer

from ..adapters.engine_door import EngineDoor
from ..http.errors import ApiError, from_engine, overloaded
from ..observability.metrics import Metrics, RequestLabel, RequestTimer
from ..observability.request_log import FinishedRequest
from ..observability.tracing import Tracing
from ..quotas.meters import Usage
from ..text.text_processor import TextProcessor

MOST_AT_ONCE: Final = 256
"""Prompts of one request that are with the engine at a time: its queue has no place for all of a large one."""


@dataclass(slots=True)
class Delta:
    """What is new of one choice. `finish_reason` set: the last delta of this choice."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    pooled: bytes | None = None
    """The vector that was asked for, as the engine sends it."""


Explain = Callable[[EngineUnavailable | RequestRejected], ApiError]
"""The engine's refusal in words."""
OnEnd = Callable[[FinishedRequest, Exception | None], None]
"""Told once how a request went, and what ended it if it failed."""


class Generation:
    """`deltas()` once; closing it early aborts the request in the engine. `first_index` is added to choice numbers.

    `label` is for metrics; `explain` puts the engine's refusal into words.
    `end_token_ids` are stop tokens that the client did not ask for: they end a choice as the end of the sequence does.
    `shown_tokens` are special ones that the text has in any case.
    """

    def __init__(
        self,
        engine: EngineDoor,
        text_processor: TextProcessor,
        request: GenerateRequest,
        metrics: Metrics,
        label: RequestLabel,
        explain: Explain = from_engine,
        first_index: int = 0,
        end_token_ids: Collection[int] = (),
        shown_tokens: Collection[int] = (),
        on_end: OnEnd | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._engine = engine
        self._request = request
        self._explain = explain
        self._first_index = first_index
        self._end_token_ids = end_token_ids
        self._on_end, self._tracing = on_end, tracing
        self.text_processor = text_processor
        self._timer = RequestTimer(metrics, label, request)
        self.prompt_token_ids = request.prompt_token_ids
        self.usage = Usage(prompt_tokens=len(request.prompt_token_ids))
        self.n = request.params.n
        self.failed = False
        """It ended with an error, of whomever."""
        self.finished: FinishedRequest | None = None
        """How it went, once it has ended."""
        self._begun = False
        self._choices = {
            index: Detokenizer(text_processor.tokenizer, request.params, request.prompt_token_ids, shown_tokens)
            for index in range(self.n)
        }

    @property
    def worked(self) -> bool:
        """Whether its tokens count: it ran, and did not fail before its first token."""
        return self._begun and (not self.failed or self.usage.completion_tokens > 0)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """New text as it comes; ends when every choice has ended. Raises ApiError, possibly after some deltas."""
        self._begun = True
        self._timer.begin()
        ended_by: Exception | None = None
        try:
            async with aclosing(self._engine.generate(self._request)) as stream:
                async for tokens in stream:
                    # The engine may still send some of a choice that a stop string has ended here.
                    if tokens.index in self._choices:
                        self._timer.note(tokens)
                        yield self._advance(tokens)
                    if not self._choices:
                        break
        except (EngineUnavailable, RequestRejected) as error:
            ended_by, told = error, self._explain(error)
            self._fail(told)
            raise told from error
        except ApiError as error:
            ended_by = error
            self._fail(error)
            raise
        finally:
            self.finished = self._timer.close(aborted=bool(self._choices))
            if self._tracing is not None:
                self._tracing.note(self.finished, self._request)
            if self._on_end is not None:
                self._on_end(self.finished, ended_by)

    def _fail(self, error: ApiError) -> None:
        self.failed = True
        self._timer.fail(error.message)

    def _advance(self, tokens: Tokens) -> Delta:
        detokenizer = self._choices[tokens.index]
        before = detokenizer.num_tokens
        ended = tokens.finish_reason is not None
        ended_by_token = tokens.finish_reason is FinishReason.STOP
        text, stop_string = detokenizer.push(tokens.token_ids, final=ended, ended_by_token=ended_by_token)
        taken = len(tokens.token_ids) if stop_string is None else detokenizer.num_tokens - before
        self.usage.completion_tokens += taken
        self._timer.take(tokens.index, taken)
        self.usage.cached_tokens = max(self.usage.cached_tokens, tokens.cached_tokens)
        delta = Delta(
            self._first_index + tokens.index,
            text,
            tokens.token_ids[:taken],
            None if tokens.logprobs is None else tokens.logprobs[:taken],
            tokens.prompt_logprobs,
            pooled=tokens.pooled,
        )
        if stop_string is not None:
            delta.finish_reason, delta.stop_reason = FinishReason.STOP.value, stop_string
            if not ended and len(self._choices) > 1:
                self._engine.end_choice(self._request.request_id, tokens.index)
        elif tokens.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            raise _cut_short(tokens.finish_reason)
        elif tokens.finish_reason is not None:
            delta.finish_reason = tokens.finish_reason.value
            delta.stop_reason = None if tokens.stop_reason in self._end_token_ids else tokens.stop_reason
        if delta.finish_reason is not None:
            del self._choices[tokens.index]
            self._timer.finish(delta.finish_reason)
        return delta


@dataclass(slots=True)
class Completion:
    """A whole answer."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    pooled: bytes | None = None
    """As of Delta."""


@dataclass(slots=True)
class Answers:
    """All choices of all generations in order. `prompt_logprobs` has an entry for each generation."""

    choices: list[Completion]
    prompt_logprobs: list[list[TokenLogprob | None]]
    usage: Usage


async def collect(generations: Sequence[Generation]) -> Answers:
    """Run all generations to their ends."""
    n = generations[0].n
    answers = Answers([Completion() for _ in range(n * len(generations))], [[] for _ in generations], Usage())
    async with aclosing(deltas_of(generations)) as deltas:
        async for delta in deltas:
            choice = answers.choices[delta.index]
            choice.text += delta.text
            choice.token_ids += delta.token_ids
            choice.logprobs += delta.logprobs or ()
            choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
            choice.pooled = delta.pooled
            answers.prompt_logprobs[delta.index // n] += delta.prompt_logprobs or ()
    answers.usage = usage_of(generations)
    return answers


def usage_of(generations: Sequence[Generation]) -> Usage:
    return sum((generation.usage for generation in generations), Usage())


def deltas_of(generations: Sequence[Generation]) -> AsyncGenerator[Delta, None]:
    """The deltas of all generations as they come. The first failure ends and aborts all of them."""
    return generations[0].deltas() if len(generations) == 1 else _merge(generations)


async def _merge(generations: Sequence[Generation]) -> AsyncGenerator[Delta, None]:
    queue: asyncio.Queue[Delta | ApiError | None] = asyncio.Queue()
    places = asyncio.Semaphore(MOST_AT_ONCE)
    tasks = [asyncio.create_task(_pump(generation.deltas(), places, queue)) for generation in generations]
    unfinished = len(tasks)
    try:
        while unfinished:
            item = await queue.get()
            if isinstance(item, ApiError):
                raise item
            if item is None:
                unfinished -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    deltas: AsyncIterator[Delta], places: asyncio.Semaphore, queue: "asyncio.Queue[Delta | ApiError | None]"
) -> None:
    try:
        async with places:
            async for delta in deltas:
                queue.put_nowait(delta)
        queue.put_nowait(None)
    except ApiError as error:
        queue.put_nowait(error)


def _cut_short(reason: FinishReason) -> ApiError:
    """The engine gave up the choice; it must not look complete."""
    if reason is FinishReason.ABORT:
        return overloaded("The server stopped before this request was complete. Try again in a moment.")
    return ApiError(500, "The engine failed on this request.", type="server_error", code="internal_error")
