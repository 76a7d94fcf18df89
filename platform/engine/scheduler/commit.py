"""Commit: what a finished step means. Counts computed tokens, publishes full blocks, ends choices, writes messages."""

from functools import partial

import numpy as np

from ..pooling.vectors import Hidden, finish_vector, to_wire
from ..pooling.wanted import Pooling, PoolingKind
from ..protocol import FinishReason, FromEngine, TokenLogprob, Tokens
from .admission import Limits
from .beam_search import BeamSearch
from .fairness import OUTPUT_WEIGHT
from .plan import Scheduled, StepPlan, StepResult
from .request_table import RequestTable
from .sequence import Request, Sequence, Status

NO_TOKEN = (
    "the model gave no usable logits for this request (NaN, infinity, or every token forbidden); "
    "check the request's token filters, and the weights of its adapter or, where it has none, of the base in this dtype"
)
NO_VECTOR = (
    "the model gave hidden states that are no finite numbers for this request; "
    "check the weights of its adapter or, where it has none, of the base in this dtype"
)
STALE = (
    "the memory of this request's adapter was given away while the request ran, which is a mistake of the server; "
    "it was ended, as its answer would have come of other weights"
)
FEW_OUTPUTS = "the model allows no more than {} different outputs of this prompt; ask for fewer beams"
NO_KEY = (
    "the model gave keys or values that are no finite numbers for this request; "
    "check the weights of its adapter or, where it has none, of the base in this dtype"
)


class Commit:
    def __init__(self, request_table: RequestTable, limits: Limits) -> None:
        self._limits = limits
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._request_table = request_table
        self._pool = request_table.pool

    def take(self, plan: StepPlan, result: StepResult) -> list[FromEngine]:
        """Messages of one step, in the order of the plan."""
        messages: list[FromEngine] = []
        sampled, unanswerable, row = result.sampled, _unanswerable(plan, result), -1
        for index, item in enumerate(plan.scheduled):
            sequence = item.sequence
            row += item.sample
            if sequence.status is not Status.RUNNING:
                continue
            if index in unanswerable:
                messages.append(self._request_table.fail(sequence.request, "internal", unanswerable[index]))
                continue
            if index in result.prompt_logprobs:
                _note_prompt(sequence.request, item, result.prompt_logprobs[index])
            if index in result.pooled:
                _add_hidden(sequence.request, item, result.pooled[index])
            self._advance(item)
            if item.sample:
                messages += self._go_on(sequence, sampled.token_ids[row], sampled.logprobs[row])
            if item.start < sequence.prompt_length <= item.start + item.count:
                messages += self._complete_prompt(sequence)
        return messages

    def _advance(self, item: Scheduled) -> None:
        """Count the computed tokens and publish the blocks they filled."""
        sequence, block_size = item.sequence, self._pool.block_size
        end = item.start + item.count
        sequence.num_computed = end
        self.prompt_tokens += max(0, min(end, sequence.prompt_length) - item.start)
        self._request_table.states.publish(item)
        first, last = item.start // block_size, end // block_size
        if self._limits.enable_prefix_caching and first < last:
            keys = sequence.hash_blocks(last, block_size)
            for position in range(first, last):
                self._pool.publish(sequence.blocks[position], keys[position])

    def _go_on(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> list[FromEngine]:
        search = sequence.request.beam_search
        if search is None:
            return [self._append(sequence, token_id, logprob)]
        assert logprob is not None, "beams are chosen by log-probabilities"
        return self._branch(sequence.request, search) if search.offer(sequence.index, logprob.top) else []

    def _branch(self, request: Request, search: BeamSearch) -> list[FromEngine]:
        """All beams of a request have been computed: each choice goes on with one of those that follow, or all end."""
        beams = search.choose()
        self.generation_tokens += len(request.running())
        self._request_table.queue.charge(request.shares, OUTPUT_WEIGHT * len(request.running()))
        if not search.ended:
            self._request_table.branch(request, beams)
            return []
        if len(search.finished) < search.width:
            return [self._request_table.fail(request, "invalid", FEW_OUTPUTS.format(len(search.finished)), "n")]
        wanted = request.message.params.logprobs
        messages: list[FromEngine] = []
        for sequence, best in zip(request.sequences, search.finished, strict=True):
            entries = best.path.entries(wanted or 0)
            tokens = [entry.token_id for entry in entries]
            told = None if wanted is None else entries
            messages.append(_message(sequence, tokens, told, best.finish_reason, best.stop_reason))
            self._request_table.finish(sequence)
        return messages

    def _append(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> Tokens:
        sequence.append(token_id)
        self.generation_tokens += 1
        self._request_table.queue.charge(sequence.request.shares, OUTPUT_WEIGHT)
        finish_reason, stop_reason = sequence.end_with(token_id)
        message = _message(sequence, [token_id], None if logprob is None else [logprob], finish_reason, stop_reason)
        if finish_reason is not None:
            self._request_table.finish(sequence)
        return message

    def _complete_prompt(self, sequence: Sequence) -> list[FromEngine]:
        """Let the other choices start, or end all where no output is wanted."""
        request = sequence.request
        if request.max_length > sequence.prompt_length:
            self._request_table.fork(request)
            return []
        if request.message.pooling is not None:
            return [self._pool_prompt(sequence, request.message.pooling)]
        unfinished = request.unfinished()
        messages: list[FromEngine] = [_message(choice, [], None, FinishReason.LENGTH, None) for choice in unfinished]
        for choice in unfinished:
            self._request_table.finish(choice)
        return messages

    def _pool_prompt(self, sequence: Sequence, pooling: Pooling) -> FromEngine:
        request = sequence.request
        assert request.hidden is not None, "the last position always counts, or all before have come"
        own = next(iter(self._request_table.heads(request)), {}) if pooling.classify else {}
        scores = partial(self._limits.classifier.scores, own=own)
        vector = finish_vector(pooling, request.hidden, sequence.prompt_length, scores, self._limits.dense)
        if vector is None:
            return self._request_table.fail(request, "internal", NO_VECTOR)
        message = _message(sequence, [], None, FinishReason.STOP, None)
        message.pooled = to_wire(vector)
        self._request_table.finish(sequence)
        return message


def _unanswerable(plan: StepPlan, result: StepResult) -> dict[int, str]:
    """Why those of plan.scheduled whose numbers mean nothing fail; where several are true, what is at the root."""
    drawing = [index for index, item in enumerate(plan.scheduled) if item.sample] if result.sampled.failed else []
    failed = [drawing[row] for row in result.sampled.failed]
    return dict.fromkeys(result.unusable, NO_KEY) | dict.fromkeys(failed, NO_TOKEN) | dict.fromkeys(result.stale, STALE)


def _add_hidden(request: Request, item: Scheduled, hidden: Hidden) -> None:
    """After a preemption all come again: it begins anew with the first position that counts."""
    pooling = request.message.pooling
    assert pooling is not None
    first = item.pooled.start == pooling.positions(0, item.sequence.prompt_length, item.sequence.prompt_length).start
    if first or request.hidden is None:
        request.hidden = hidden
    elif pooling.kind is PoolingKind.MAX:
        request.hidden = np.maximum(request.hidden, hidden)
    elif pooling.by_token:
        request.hidden = np.concatenate([request.hidden, hidden])
    else:
        request.hidden = request.hidden + hidden


def _note_prompt(request: Request, item: Scheduled, entries: list[TokenLogprob]) -> None:
    """Keep the entries that are new: after a preemption the first ones come again."""
    request.prompt_logprobs += entries[len(request.prompt_logprobs) - item.prompt_targets.start :]


def _message(
    sequence: Sequence,
    token_ids: list[int],
    logprobs: list[TokenLogprob] | None,
    finish_reason: FinishReason | None,
    stop_reason: int | None,
) -> Tokens:
    request = sequence.request
    message = Tokens(
        request_id=request.id,
        index=sequence.index,
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        cached_tokens=request.cached_tokens,
    )
    if sequence.first_message:
        sequence.first_message = False
        message.queue_seconds, message.load_seconds = request.queue_seconds, request.load_seconds
        if sequence.index == 0 and sequence.row.params.prompt_logprobs is not None:
            message.prompt_logprobs = request.prompt_logprobs
    return message
