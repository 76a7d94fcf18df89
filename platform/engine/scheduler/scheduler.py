"""Scheduler: which sequences run in the next step, with how many tokens, in which blocks.

A step has one budget of tokens. Running decodes come first, one token each. Of the rest the oldest prompt gets half, so
it always moves on; the other half goes to the shortest prompts, running or waiting, so a long prompt does not stall
short ones. When blocks run out, the most junior sequence of the share that holds most gives its own back and computes
again later. The same happens for a place, when one share holds most of them and nobody else has come in for a while.
"""

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from ..kv_cache.block_pool import BlockPool
from ..kv_cache.state_pool import StatePool
from ..pooling.vectors import MOST_NUMBERS
from ..protocol import FinishReason, FromEngine, GenerateRequest, RequestFailed, Tokens
from .activation import explain_absence, find_start
from .admission import Limits, Overloaded, bound_length
from .commit import Commit
from .plan import PlanBuilder, StepPlan, StepResult
from .request_table import AdapterResidency, Placement, RequestTable
from .sequence import Request, Sequence
from .waiting_queue import full_words, gives_way

NOT_ADDITIVE = (
    "adapter {digest} changes what the base itself computes (DoRA, IA3, trained biases, norms or tokens): it can "
    "neither be scaled nor be added to others; ask for it alone, with scale 1"
)
NO_HEAD = (
    "neither the base nor the adapter has a classification head; ask for an adapter of TaskType SEQ_CLS, or serve a "
    "model for sequence classification"
)
NO_POOLER = (
    "the adapter brings a classification head, and the base lacks the layer before it: serve a checkpoint that has it"
)
MANY_NUMBERS = "all tokens have {numbers:,} classes together, and at most {most:,} are told; shorten the prompt"
OTHER_LOGITS = (
    "the model judges by two tokens of its lm_head, and the adapter changes the lm_head; train it on other modules"
)
SEVERAL_HEADS = "several of the adapters have a classification head of their own; name one of them"
UNKNOWN_TOKEN = "the request has token id {token}, outside the vocabulary of {vocab_size} that its adapter has"

STALL_SECONDS: Final = 0.5
"""So long without an admission, and whoever holds most of the places gives one to somebody who waits."""

__all__ = ["AdapterResidency", "Limits", "Overloaded", "Scheduler"]


class Scheduler:
    """Not thread-safe: every call comes from the engine's loop.

    A step may be scheduled while earlier ones are in flight, that is neither committed nor failed; those come in the
    order of their plans. Each plan with sequences is followed by one commit or fail_step.
    """

    def __init__(
        self,
        limits: Limits,
        pool: BlockPool,
        adapters: AdapterResidency,
        clock: Callable[[], float] = time.monotonic,
        states: StatePool | None = None,
    ) -> None:
        """`states`: of a model with recurrent layers. No more sequences run than it has slots."""
        if states is not None:
            limits = replace(limits, max_num_seqs=min(limits.max_num_seqs, states.num_usable))
        self.limits = limits
        self.pool = pool
        self.request_table = RequestTable(pool, adapters, states)
        self.queries_by_tenant: Counter[str] = Counter()
        """Prompt tokens looked up in the prefix cache."""
        self.hits_by_tenant: Counter[str] = Counter()
        self._commit = Commit(self.request_table, limits)
        self._clock = clock
        self._numbers = itertools.count()
        self._last_admission = -math.inf
        self._seeds = random.SystemRandom() if limits.seed is None else random.Random(limits.seed)

    @property
    def prompt_tokens(self) -> int:
        return self._commit.prompt_tokens

    @property
    def prefix_queries(self) -> int:
        return self.queries_by_tenant.total()

    @property
    def prefix_hits(self) -> int:
        return self.hits_by_tenant.total()

    @property
    def generation_tokens(self) -> int:
        return self._commit.generation_tokens

    def has_work(self) -> bool:
        return bool(self.request_table.requests)

    def add(self, message: GenerateRequest) -> tuple[Request, list[RequestFailed]]:
        """Queue a request; where the queue is full, in the place of another tenant's that has more waiting, whose end
        is told. Raises Overloaded, or ValueError for what is wrong with it or can never run."""
        if message.request_id in self.request_table.requests:
            raise ValueError(f"a request with the id {message.request_id!r} is running already; choose another id")
        cache_tokens = self.pool.num_usable * self.pool.block_size or self.limits.max_model_len
        max_length = bound_length(message, self.limits, cache_tokens, self.pool.block_size)
        classifies = message.pooling is not None and message.pooling.classify
        if classifies and not message.adapters and not self.limits.classifier.works_with({}):
            raise ValueError(NO_HEAD)
        displaced = self._make_way(message.tenant)
        request = self._make_request(message, max_length)
        self.request_table.add(request)
        return request, displaced

    def abort(self, request_id: str, index: int | None = None) -> list[Tokens]:
        """End a live request, or only its choice `index`, with one last message for each choice that this ends. Beams
        end together."""
        request = self.request_table.requests.get(request_id)
        unfinished = [] if request is None else request.unfinished()
        whole = index is None or (request is not None and request.beam_search is not None)
        ended = [sequence for sequence in unfinished if whole or sequence.index == index]
        for sequence in ended:
            self.request_table.finish(sequence)
        if request is not None and index == 0:
            # The others may have waited for the prompt it computed.
            self.request_table.fork(request)
        return [
            Tokens(request_id=request_id, index=sequence.index, token_ids=[], finish_reason=FinishReason.ABORT)
            for sequence in ended
        ]

    def fail(self, request: Request, kind: str, message: str, param: str | None) -> list[FromEngine]:
        """End a request that cannot go on; nothing where it has ended."""
        return [self.request_table.fail(request, kind, message, param)] if request.unfinished() else []

    def schedule(self) -> StepPlan:
        """Plan a step. It may be empty: all requests wait for adapters, or for what a step in flight will tell."""
        draft = PlanBuilder(self.limits.max_num_batched_tokens)
        self.request_table.just_started = []
        self._free_place(draft)
        if not draft.postponed:
            self._grant_decodes(draft)
        if draft.postponed:
            return StepPlan(failures=self._fail_absent(draft))
        prefills = [sequence for sequence in self.request_table.running if sequence.remaining > 1]
        for oldest in prefills[:1]:
            draft.grant(oldest, (draft.budget + 1) // 2)
        others = sorted(prefills[1:], key=lambda sequence: sequence.remaining)
        if others:
            self._admit(draft, shorter_than=others[0].remaining)
        for sequence in others:
            draft.grant(sequence, sequence.remaining)
        self._admit(draft)
        for oldest in prefills[:1]:
            draft.grant(oldest, oldest.remaining)
        plan = draft.finish()
        plan.failures += self._fail_absent(draft)
        self.request_table.states.keep(plan, self.request_table.places_aside)
        self.request_table.take_off(plan.scheduled)
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[FromEngine]:
        """Take the answer to the plan: new tokens, ended choices, failed requests."""
        self.request_table.land(plan.scheduled)
        messages = [*plan.failures, *self._commit.take(plan, result)]
        self.request_table.states.settle(plan.scheduled)
        return messages

    def fail_step(self, plan: StepPlan, message: str, kind: str = "internal") -> list[FromEngine]:
        """The step broke: end the requests it was for, and no other."""
        self.request_table.land(plan.scheduled)
        self.request_table.states.settle(plan.scheduled)
        requests = {item.sequence.request.id: item.sequence.request for item in plan.scheduled}
        failures = [
            self.request_table.fail(request, kind, message) for request in requests.values() if request.unfinished()
        ]
        return [*plan.failures, *failures]

    def _make_way(self, tenant: str) -> list[RequestFailed]:
        """Who has filled the queue keeps nobody out of it who has less in it."""
        if len(self.request_table.unstarted) < self.limits.max_queue:
            return []
        waiting = [self.request_table.requests[name] for name in self.request_table.unstarted]
        counts = Counter(request.tenant for request in waiting)
        heaviest = gives_way(tenant, counts)
        if heaviest is None:
            raise Overloaded(full_words(len(waiting)))
        last = max((it for it in waiting if it.tenant == heaviest), key=lambda it: it.sequences[0].order)
        words = f"the queue is full, and {counts[heaviest]} of yours wait in it: others come first; send fewer at once"
        return [self.request_table.fail(last, "overloaded", words)]

    def _make_request(self, message: GenerateRequest, max_length: int) -> Request:
        return Request(
            message,
            next(self._numbers),
            self._clock(),
            max_length=max_length,
            eos_token_ids=self.limits.eos_token_ids,
            fingerprint=self.limits.fingerprint,
            seed=self._seeds.getrandbits(62) if message.params.seed is None else 0,
        )

    def _free_place(self, draft: PlanBuilder) -> None:
        """Where all places are taken and nobody gets in: whoever holds most of them gives one up."""
        now = self._clock()
        if self.request_table.places_taken < self.limits.max_num_seqs or now - self._last_admission < STALL_SECONDS:
            return
        head = next(self._heads(draft), None)
        if head is None or now - head.request.arrival < STALL_SECONDS or not self.request_table.fits(self._place(head)):
            return
        holder = self.request_table.place_holder(head)
        if holder is None:
            # Looked for again after as long a time: it costs more than a step should spend.
            self._last_admission = now
        elif self.request_table.in_flight:
            draft.postponed = True
        else:
            self.request_table.give_up_place(holder)

    def _grant_decodes(self, draft: PlanBuilder) -> None:
        for sequence in tuple(self.request_table.running):
            # An earlier one may have preempted it: then all its tokens remain.
            if sequence.remaining != 1 or sequence.lacks_token or sequence.lacks_mask:
                continue
            if self._make_room(sequence, draft):
                draft.grant_decode(sequence)

    def _make_room(self, sequence: Sequence, draft: PlanBuilder) -> bool:
        while not self.request_table.grow(sequence):
            if self.request_table.in_flight:
                draft.postponed = True
                return False
            victim = self.request_table.victim()
            draft.revoke(victim)
            self.request_table.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _admit(self, draft: PlanBuilder, shorter_than: float = math.inf) -> None:
        """Start waiting sequences in their order, leaving out those with as many tokens to compute, or more."""
        while draft.budget and self.request_table.places_taken < self.limits.max_num_seqs:
            placement = self._next_placement(draft, shorter_than)
            if placement is None or not self._has_room(placement, draft):
                # Nobody overtakes one that lacks places, blocks or tokens, so they gather for it.
                return
            self._start(placement, draft)

    def _has_room(self, placement: Placement, draft: PlanBuilder) -> bool:
        is_whole = self.limits.splits_prompts or placement.remaining <= draft.budget
        return is_whole and self._has_places(placement.sequence) and self.request_table.fits(placement)

    def _has_places(self, sequence: Sequence) -> bool:
        return self.request_table.places_taken + sequence.request.places <= self.limits.max_num_seqs

    def _next_placement(self, draft: PlanBuilder, shorter_than: float) -> Placement | None:
        placements = (self._place(sequence) for sequence in self._heads(draft))
        return next((placement for placement in placements if placement.remaining < shorter_than), None)

    def _heads(self, draft: PlanBuilder) -> Iterator[Sequence]:
        """Who is next: the most senior preempted one, else the first of each tenant's line, fairest tenant first.

        Who waits for an adapter waits alone.
        """
        if self.request_table.preempted:
            yield self.request_table.preempted[0]
            return
        for line in self.request_table.queue.lines():
            yield from itertools.islice((s for s in line if self._has_adapters(s.request, draft)), 1)

    def _has_adapters(self, request: Request, draft: PlanBuilder) -> bool:
        if not request.lacks_adapters:
            return request.id not in draft.unfit
        if request.digests not in draft.absent and self.request_table.acquire_adapters(request):
            if request.lacking_since is not None:
                request.load_seconds = self._clock() - request.lacking_since
            return self._is_fit(request, draft) and self._activate(request, draft)
        if request.lacking_since is None:
            request.lacking_since = self._clock()
        if request.digests in draft.absent:
            return False
        failures = (self.request_table.adapters.failure(digest) for digest in request.digests)
        draft.absent[request.digests] = next((failure for failure in failures if failure is not None), None)
        return False

    def _is_fit(self, request: Request, draft: PlanBuilder) -> bool:
        """Whether the adapters it now holds can do what it asks for."""
        reason = self._unfitness(request)
        if reason is not None:
            draft.unfit[request.id] = reason
        return reason is None

    def _unfitness(self, request: Request) -> str | None:
        adapters, digests = self.request_table.adapters, request.digests
        as_it_is = len(request.adapters) == 1 and request.adapters[0].scale == 1.0
        changing = [digest for digest in digests if not (as_it_is or adapters.is_additive(digest))]
        if changing:
            return NOT_ADDITIVE.format(digest=changing[0][:12])
        pooling = request.message.pooling
        if pooling is not None and pooling.classify:
            heads = self.request_table.heads(request)
            if len(heads) > 1:
                return SEVERAL_HEADS
            if not self.limits.classifier.works_with(next(iter(heads), {})):
                return NO_POOLER if heads else NO_HEAD
            if not heads and self.limits.head_is_logits and any(map(adapters.changes_logits, digests)):
                return OTHER_LOGITS
            if pooling.by_token:
                classes = self.limits.classifier.num_classes(next(iter(heads), {}))
                numbers = len(request.message.prompt_token_ids) * classes
                if numbers > MOST_NUMBERS:
                    return MANY_NUMBERS.format(numbers=numbers, most=MOST_NUMBERS)
        vocab_size = min(adapters.vocab_size(digest) for digest in digests)
        if request.largest_token >= vocab_size:
            return UNKNOWN_TOKEN.format(token=request.largest_token, vocab_size=vocab_size)
        return None

    def _activate(self, request: Request, draft: PlanBuilder) -> bool:
        """Find the first token that each of the adapters it now holds acts on; False where one never acts."""
        starts = []
        for digest in request.digests:
            sought = self.request_table.adapters.invocation_tokens(digest)
            start = find_start(request.message.prompt_token_ids, sought)
            if start is None:
                draft.unfit[request.id] = explain_absence(digest[:12], sought)
                return False
            starts.append(start)
        request.starts = tuple(starts)
        return True

    def _fail_absent(self, draft: PlanBuilder) -> list[RequestFailed]:
        """End the waiting requests whose adapters will never come, or cannot do what is asked."""
        reasons = {digests: reason for digests, reason in draft.absent.items() if reason is not None}
        if not reasons and not draft.unfit:
            return []
        waiting = {sequence.request.id: sequence.request for sequence in self.request_table.queue}
        absent = [request for request in waiting.values() if request.lacks_adapters and request.digests in reasons]
        unfit = [waiting[request_id] for request_id in draft.unfit]
        return [
            *[self.request_table.fail(request, "unavailable", reasons[request.digests]) for request in absent],
            *[self.request_table.fail(request, "invalid", draft.unfit[request.id]) for request in unfit],
        ]

    def _place(self, sequence: Sequence) -> Placement:
        """Start after what the prefix cache or another choice of the same request has computed already.

        At least the last token is always computed: its logits are needed.
        """
        block_size, states = self.pool.block_size, self.request_table.states
        matched = self._match(sequence)
        count, state = states.served(sequence, len(matched))
        cached = Placement(sequence, matched[:count], None, count * block_size, state, len(matched))
        source, forked = sequence.request.fork_source(), sequence.prompt_length - 1
        # A copy belongs to a step, and one that lacks its mask may be all alone and have nothing to compute.
        if source is None or sequence.lacks_mask or forked <= count * block_size:
            return cached
        can_fork, state = states.fork(sequence)
        if not can_fork:
            return cached
        full, partial = divmod(forked, block_size)
        copied = source.blocks[full] if partial else None
        return Placement(sequence, source.blocks[:full], copied, forked, state, len(matched))

    def _match(self, sequence: Sequence) -> list[int]:
        if not self._reads_cache(sequence):
            return []
        count = (len(sequence.token_ids) - 1) // self.pool.block_size
        return self.pool.match(sequence.hash_blocks(count, self.pool.block_size)[:count])

    def _reads_cache(self, sequence: Sequence) -> bool:
        return self.limits.enable_prefix_caching and not sequence.needs_whole_prompt

    def _start(self, placement: Placement, draft: PlanBuilder) -> None:
        sequence = placement.sequence
        request = sequence.request
        self._last_admission = self._clock()
        copy = self.request_table.start(placement)
        if copy is not None:
            draft.copies.append(copy)
        self.request_table.states.want(sequence, placement.matched, self.limits.enable_prefix_caching)
        if not request.started:
            request.queue_seconds = self._clock() - request.arrival
            request.cached_tokens = placement.num_computed
            self.queries_by_tenant[request.tenant] += sequence.prompt_length if self._reads_cache(sequence) else 0
            self.hits_by_tenant[request.tenant] += placement.num_computed
        draft.grant(sequence, placement.remaining)
