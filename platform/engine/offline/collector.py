"""Collector: the engine's token messages of one request, gathered into RequestOutputs."""

import time

from ..protocol import FinishReason, GenerateRequest, RequestFailed, TokenLogprob, Tokens
from ..sampling_params import RequestOutputKind
from ..text.detokenizer import Detokenizer
from ..text.tokenizer import Tokenizer
from .lora_request import LoRARequest
from .outputs import CompletionOutput, Logprob, Logprobs, RequestMetrics, RequestOutput
from .prompts import Adapter


class CompletionState:
    """One choice as it grows."""

    def __init__(self, index: int, request: GenerateRequest, tokenizer: Tokenizer) -> None:
        params = request.params
        self.index = index
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, params, request.prompt_token_ids) if params.detokenize else None
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._told_text = self._told_tokens = 0
        self._told_end = False
        """Of the last delta()."""

    @property
    def finished(self) -> bool:
        return self._finish_reason is not None

    def take(self, message: Tokens) -> bool:
        """Add the new tokens; those after a stop string are dropped, and so is all that follows the end.

        True: a stop string has just ended it, of which the engine knows nothing.
        """
        if self.finished:
            return False
        self._token_ids += message.token_ids
        if self._logprobs is not None:
            self._logprobs += message.logprobs or []
        ended = message.finish_reason is not None
        if message.finish_reason is not None:
            self._finish_reason, self._stop_reason = message.finish_reason.value, message.stop_reason
        if self._detokenizer is None:
            return False
        ended_by_token = message.finish_reason is FinishReason.STOP
        text, stopped_by = self._detokenizer.push(message.token_ids, ended, ended_by_token)
        self._text += text
        if stopped_by is not None:
            self._finish_reason, self._stop_reason = FinishReason.STOP.value, stopped_by
            del self._token_ids[self._detokenizer.num_tokens :]
        return stopped_by is not None and not ended

    def fail(self) -> None:
        """It ends as it is, unless it has ended."""
        self._finish_reason = self._finish_reason or FinishReason.ERROR.value

    def output(self) -> CompletionOutput:
        """All of it."""
        return self._since(0, 0)

    def delta(self) -> CompletionOutput:
        """What came since the last delta."""
        output = self._since(self._told_text, self._told_tokens)
        self._told_text, self._told_tokens, self._told_end = len(self._text), len(self._token_ids), self.finished
        return output

    @property
    def has_delta(self) -> bool:
        """Whether anything came, its end included, since the last delta."""
        return len(self._token_ids) > self._told_tokens or self.finished != self._told_end

    def _since(self, text: int, tokens: int) -> CompletionOutput:
        logprobs = None if self._logprobs is None else self._logprobs[tokens : len(self._token_ids)]
        return CompletionOutput(
            index=self.index,
            text=self._text[text:],
            token_ids=self._token_ids[tokens:],
            cumulative_logprob=self._sum_of_logprobs(),
            logprobs=None if logprobs is None else [describe(entry, self._tokenizer) for entry in logprobs],
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
        )

    def _sum_of_logprobs(self) -> float | None:
        if self._logprobs is None:
            return None
        return sum(entry.logprob for entry in self._logprobs[: len(self._token_ids)])


class Collector:
    def __init__(
        self,
        request: GenerateRequest,
        prompt: str | None,
        adapter: Adapter | None,
        tokenizer: Tokenizer,
        lora_request: LoRARequest | None = None,
    ) -> None:
        self.request = request
        self.failure: RequestFailed | None = None
        self._prompt = prompt
        self._adapter, self._lora_request = adapter, lora_request
        self._tokenizer = tokenizer
        self._choices = [CompletionState(index, request, tokenizer) for index in range(request.params.n)]
        self._prompt_logprobs: list[Logprobs | None] | None = None
        self._cached_tokens = 0
        self._metrics = RequestMetrics(arrival_time=time.time(), queued_ts=time.monotonic())

    @property
    def finished(self) -> bool:
        return all(choice.finished for choice in self._choices)

    @property
    def num_tokens(self) -> int:
        """Tokens received, over all choices."""
        return self._metrics.num_generation_tokens

    def take(self, message: Tokens) -> bool:
        """Whether a stop string has just ended the choice: the engine is to end it too."""
        self._note_time(len(message.token_ids))
        stopped = self._choices[message.index].take(message)
        self._cached_tokens = max(self._cached_tokens, message.cached_tokens)
        if message.prompt_logprobs is not None:
            self._prompt_logprobs = [
                None if entry is None else describe(entry, self._tokenizer) for entry in message.prompt_logprobs
            ]
        return stopped

    def fail(self, failure: RequestFailed) -> None:
        """The engine gave the request up: what has come stays, and each open choice ends with an error."""
        self.failure = failure
        for choice in self._choices:
            choice.fail()

    def output(self) -> RequestOutput:
        """All that has come."""
        return self._with([choice.output() for choice in self._choices])

    def news(self) -> RequestOutput | None:
        """What a stream gives now, by the request's `output_kind`; None: nothing yet."""
        kind = self.request.params.output_kind
        if kind is RequestOutputKind.FINAL_ONLY:
            return self.output() if self.finished else None
        if kind is RequestOutputKind.CUMULATIVE:
            return self.output()
        changed = [choice.delta() for choice in self._choices if choice.has_delta]
        return self._with(changed) if changed else None

    def _with(self, outputs: list[CompletionOutput]) -> RequestOutput:
        for output in outputs:
            output.lora_request = self._lora_request
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs,
            outputs=outputs,
            finished=self.finished,
            num_cached_tokens=self._cached_tokens,
            adapter=self._adapter,
            lora_request=self._lora_request,
            metrics=self._metrics,
            error=None if self.failure is None else self.failure.message,
        )

    def _note_time(self, tokens: int) -> None:
        metrics, now = self._metrics, time.monotonic()
        metrics.first_token_ts = metrics.first_token_ts or now
        metrics.last_token_ts = now
        metrics.num_generation_tokens += tokens


def describe(entry: TokenLogprob, tokenizer: Tokenizer) -> Logprobs:
    """The token itself first, then the most likely ones, each with its rank."""
    ranked = [(entry.token_id, entry.logprob, entry.rank)]
    ranked += [(token_id, logprob, place) for place, (token_id, logprob) in enumerate(entry.top, 1)]
    return {
        token_id: Logprob(logprob, rank, tokenizer.decode([token_id], skip_special_tokens=False))
        for token_id, logprob, rank in ranked
    }
