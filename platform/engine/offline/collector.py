"""Collector: the engine's token messages of one request, gathered into a RequestOutput."""

from ..protocol import FinishReason, GenerateRequest, TokenLogprob, Tokens
from ..text.detokenizer import Detokenizer
from ..text.tokenizer import Tokenizer
from .outputs import CompletionOutput, Logprob, Logprobs, RequestOutput
from .prompts import Adapter


class CompletionState:
    """One choice as it grows."""

    def __init__(self, index: int, request: GenerateRequest, tokenizer: Tokenizer) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, request.params, request.prompt_token_ids)
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None if request.params.logprobs is None else []
        self._finish_reason: FinishReason | None = None
        self._stop_reason: int | str | None = None

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
        self._finish_reason, self._stop_reason = message.finish_reason, message.stop_reason
        ended_by_token = message.finish_reason is FinishReason.STOP
        _, stopped_by = self._detokenizer.push(message.token_ids, self.finished, ended_by_token)
        if stopped_by is not None:
            self._finish_reason, self._stop_reason = FinishReason.STOP, stopped_by
            del self._token_ids[self._detokenizer.num_tokens :]
        return stopped_by is not None and message.finish_reason is None

    def output(self) -> CompletionOutput:
        logprobs = None if self._logprobs is None else self._logprobs[: len(self._token_ids)]
        return CompletionOutput(
            index=self._index,
            text=self._detokenizer.text,
            token_ids=self._token_ids,
            cumulative_logprob=None if logprobs is None else sum(entry.logprob for entry in logprobs),
            logprobs=None if logprobs is None else [describe(entry, self._tokenizer) for entry in logprobs],
            finish_reason=None if self._finish_reason is None else self._finish_reason.value,
            stop_reason=self._stop_reason,
        )


class Collector:
    def __init__(
        self, request: GenerateRequest, prompt: str | None, adapter: Adapter | None, tokenizer: Tokenizer
    ) -> None:
        self.request = request
        self._prompt = prompt
        self._adapter = adapter
        self._tokenizer = tokenizer
        self._choices = [CompletionState(index, request, tokenizer) for index in range(request.params.n)]
        self._prompt_logprobs: list[Logprobs | None] | None = None
        self._cached_tokens = 0
        self.num_tokens = 0
        """Tokens received, over all choices."""

    @property
    def finished(self) -> bool:
        return all(choice.finished for choice in self._choices)

    def take(self, message: Tokens) -> bool:
        """Whether a stop string has just ended the choice: the engine is to end it too."""
        stopped = self._choices[message.index].take(message)
        self.num_tokens += len(message.token_ids)
        self._cached_tokens = max(self._cached_tokens, message.cached_tokens)
        if message.prompt_logprobs is not None:
            self._prompt_logprobs = [
                None if entry is None else describe(entry, self._tokenizer) for entry in message.prompt_logprobs
            ]
        return stopped

    def output(self) -> RequestOutput:
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs,
            outputs=[choice.output() for choice in self._choices],
            finished=self.finished,
            num_cached_tokens=self._cached_tokens,
            adapter=self._adapter,
        )


def describe(entry: TokenLogprob, tokenizer: Tokenizer) -> Logprobs:
    """The token itself first, then the most likely ones, each with its rank."""
    ranked = [(entry.token_id, entry.logprob, entry.rank)]
    ranked += [(token_id, logprob, place) for place, (token_id, logprob) in enumerate(entry.top, 1)]
    return {
        token_id: Logprob(logprob, rank, tokenizer.decode([token_id], skip_special_tokens=False))
        for token_id, logprob, rank in ranked
    }
