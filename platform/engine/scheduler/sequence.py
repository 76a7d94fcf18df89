"""Sequence: one choice of a request on its way through the engine. Request: the choices of one prompt."""

import enum
import hashlib

from ..kv_cache.prefix import Acting, BlockKey, block_key, encode, root_hash
from ..pooling.vectors import Hidden
from ..protocol import FinishReason, GenerateRequest, TokenLogprob
from ..sampling.bad_words import BadWords
from ..sampling.state import SampleRow
from ..sampling.token_mask import TokenMask
from .admission import blocks_of_beams, largest_token
from .beam_search import BeamSearch
from .shares import Path


class Status(enum.Enum):
    PENDING = "choice 0 still computes its prompt"
    WAITING = "in the fair queue: never admitted, or it gave its place to another"
    RUNNING = "holds blocks"
    PREEMPTED = "gave its blocks back, goes before all that wait"
    FINISHED = "ended"


class Request:
    """A live GenerateRequest. Its first choice computes the prompt; the others fork from it when it has."""

    def __init__(
        self,
        message: GenerateRequest,
        number: int,
        arrival: float,
        *,
        max_length: int,
        eos_token_ids: frozenset[int],
        fingerprint: str,
        seed: int = 0,
    ) -> None:
        """`number` grows with each request; `max_length` bounds prompt plus output of a choice, in tokens; `seed`: of
        a request that brings none."""
        params = message.params
        self.message = message
        self.id = message.request_id
        self.tenant = message.tenant
        self.shares: Path = ()
        """By which it is served, set as it is queued."""
        self.adapters = message.adapters
        self.digests = tuple([adapter.digest for adapter in message.adapters])
        self.largest_token = largest_token(message)
        self.number = number
        self.arrival = arrival
        self.max_length = max_length
        self.max_cached = max(max_length - 1, len(message.prompt_token_ids))
        """Tokens of a choice that the KV cache holds at most; the last one drawn is never computed."""
        constrained = params.structured_outputs is not None
        self.eos_token_ids = frozenset() if params.ignore_eos and not constrained else eos_token_ids
        """Where the text is constrained and may not go on, they end it all the same."""
        self.stop_token_ids = frozenset(params.stop_token_ids)
        self.starts = (0,) * len(message.adapters)
        """Position of the first token that each adapter acts on. Known for sure once the request holds them."""
        self.epochs = (0,) * len(message.adapters)
        """Of each adapter as the request took it: every step asks whether it is still the same."""
        self.root_hash = root_hash(message.cache_salt, fingerprint)
        self.prompt_logprobs: list[TokenLogprob | None] = [None]
        self.hidden: Hidden | None = None
        """As of StepResult.pooled, of the steps so far."""
        self.holds_adapters = False
        self.queue_seconds: float | None = None
        self.lacking_since: float | None = None
        """When its adapters were first found missing."""
        self.load_seconds = 0.0
        self.cached_tokens = 0
        self.beam_search = None if message.beam_search is None else self._search_beams()
        seed = seed if params.seed is None else params.seed
        self.sequences = [Sequence(self, index, choice_seed(seed, index)) for index in range(params.n)]

    def _search_beams(self) -> BeamSearch:
        most = self.max_length - len(self.message.prompt_token_ids)
        return BeamSearch(self.message, most, self.eos_token_ids, self.stop_token_ids)

    @property
    def started(self) -> bool:
        return self.queue_seconds is not None

    @property
    def lacks_adapters(self) -> bool:
        return bool(self.digests) and not self.holds_adapters

    def beginning(self, first: int, end: int) -> list[Acting]:
        """Its adapters that act on a token before `end`, when one of them begins at `first` or later."""
        if not any(first <= start < end for start in self.starts):
            return []
        acting = zip(self.adapters, self.starts, strict=True)
        return [Acting(ref.digest, ref.scale, start) for ref, start in acting if start < end]

    def unfinished(self) -> list["Sequence"]:
        return [sequence for sequence in self.sequences if sequence.status is not Status.FINISHED]

    def running(self) -> list["Sequence"]:
        return [sequence for sequence in self.sequences if sequence.status is Status.RUNNING]

    def beam_blocks(self, block_size: int) -> int:
        """Most blocks that all choices hold at once where they share those that the prompt fills."""
        return blocks_of_beams(len(self.message.prompt_token_ids), self.max_cached, len(self.sequences), block_size)

    @property
    def places(self) -> int:
        """Among the running sequences that it takes as its first choice begins."""
        return 1 if self.beam_search is None else len(self.sequences)

    def fork_source(self) -> "Sequence | None":
        """A choice that has the whole prompt in its blocks."""
        for sequence in self.sequences:
            if sequence.status is Status.RUNNING and sequence.num_computed >= sequence.prompt_length:
                return sequence
        return None


class Sequence:
    """The scheduler moves it and owns its blocks and state; the runner reads token_ids, num_computed, blocks, state and
    row."""

    __slots__ = (
        "bad_words",
        "blocks",
        "copied_from",
        "ends",
        "first_message",
        "index",
        "kept_at",
        "keys",
        "needs_all_tokens",
        "num_computed",
        "num_placeholders",
        "num_submitted",
        "order",
        "output_token_ids",
        "preemptions",
        "prompt_length",
        "rank",
        "request",
        "row",
        "state",
        "state_keys",
        "state_source",
        "status",
        "token_ids",
    )

    def __init__(self, request: Request, index: int, seed: int) -> None:
        message = request.message
        params = message.params
        self.request = request
        self.index = index
        self.status = Status.PENDING
        self.prompt_length = len(message.prompt_token_ids)
        self.token_ids = list(message.prompt_token_ids)
        """Prompt and output."""
        self.output_token_ids: list[int] = []
        self.num_computed = 0
        """Tokens whose keys and values are in the cache: always the first ones."""
        self.num_submitted = 0
        """Tokens after those that steps in flight compute."""
        self.num_placeholders = 0
        """Tokens that steps in flight draw and a later one computes. They come after token_ids; which they are, only
        the device knows."""
        self.blocks: list[int] = []
        self.copied_from: int | None = None
        """Block that its last one, partly filled, becomes a copy of before its next token is computed."""
        self.keys: list[BlockKey] = []
        self.state: int | None = None
        """Slot of its recurrent state, that after its first num_computed + num_submitted tokens; None while it holds
        no blocks, and for a model without such states."""
        self.state_source: int | None = None
        """Slot that its own becomes a copy of before its next token is computed. It is held until then."""
        self.kept_at: list[tuple[int, BlockKey]] = []
        """After how many tokens, ascending, snapshots of its state are still to be taken, and their keys."""
        self.state_keys: list[BlockKey] = []
        """Of the snapshots that it began with or left."""
        self.order = (message.priority, request.number, index)
        """Place among the waiting sequences of its share."""
        self.rank = -1
        """Seniority: the how-manieth sequence to be admitted; -1: it never was."""
        self.preemptions = 0
        self.first_message = True
        mask = _make_mask(request)
        self.ends = tuple(request.eos_token_ids | request.stop_token_ids) if params.min_tokens and mask is None else ()
        """Blocked while min_tokens is not reached."""
        self.bad_words = BadWords(message.bad_words)
        self.row = SampleRow(
            params,
            seed,
            0,
            message.prompt_token_ids,
            self.output_token_ids,
            self.ends + self.bad_words.next_tokens(()),
            params.logprobs if request.beam_search is None else request.beam_search.num_candidates,
            mask,
            has_bad_words=bool(self.bad_words),
        )
        self.needs_all_tokens = self.row.needs_all_tokens or request.beam_search is not None

    @property
    def remaining(self) -> int:
        """Tokens still to schedule before the next one can be drawn; 1 while decoding."""
        return len(self.token_ids) + self.num_placeholders - self.num_computed - self.num_submitted

    @property
    def num_tokens(self) -> int:
        """Prompt and output, with the placeholders."""
        return len(self.token_ids) + self.num_placeholders

    @property
    def in_flight(self) -> bool:
        """A step that was submitted and not committed reads and writes its blocks, with its adapters."""
        return self.num_submitted > 0

    @property
    def lacks_token(self) -> bool:
        """It cannot be scheduled before its newest token is known: penalties and masks are worked out on the host."""
        return self.needs_all_tokens and self.num_placeholders > 0

    @property
    def lacks_mask(self) -> bool:
        """Its next token cannot be drawn yet: what is allowed is not known."""
        return self.needs_all_tokens and self.row.mask is not None and self.row.mask.bits is None

    @property
    def needs_prompt_logprobs(self) -> bool:
        wanted = self.index == 0 and self.row.params.prompt_logprobs is not None
        return wanted and len(self.request.prompt_logprobs) < self.prompt_length

    @property
    def needs_whole_prompt(self) -> bool:
        """It needs more of its prompt's tokens than keys and values: nothing that is cached may be skipped."""
        pooling = self.request.message.pooling
        return self.needs_prompt_logprobs or (pooling is not None and pooling.needs_whole_prompt)

    def become(self, other: "Sequence") -> None:
        """Go on from the tokens of another choice. Its blocks are the caller's business."""
        self.token_ids = list(other.token_ids)
        self.output_token_ids[:] = other.output_token_ids
        self.keys = list(other.keys)
        self.num_computed = other.num_computed
        self.row.position = other.row.position

    def append(self, token_id: int) -> None:
        """Take a drawn token; the row is then ready for the next draw."""
        self.token_ids.append(token_id)
        self.output_token_ids.append(token_id)
        self.row.position += 1
        if self.row.position == self.row.params.min_tokens:
            self.ends = self.row.blocked_token_ids = ()
        if self.row.has_bad_words:
            self.row.blocked_token_ids = self.ends + self.bad_words.next_tokens(self.output_token_ids)
        if self.row.mask is not None:
            self.row.mask.forget()

    def hash_blocks(self, count: int, block_size: int) -> list[BlockKey]:
        """Keys of at least the first `count` blocks, all full; each block is hashed once in a sequence's life."""
        while len(self.keys) < count:
            first = len(self.keys) * block_size
            end = first + block_size
            parent = self.keys[-1].hash if self.keys else self.request.root_hash
            self.keys.append(block_key(parent, self.token_ids[first:end], self.request.beginning(first, end)))
        return self.keys

    def end_with(self, token_id: int) -> tuple[FinishReason | None, int | None]:
        """Whether the token just appended ends the choice, and the stop token to name."""
        if token_id in self.request.eos_token_ids:
            return FinishReason.STOP, None
        if token_id in self.request.stop_token_ids:
            return FinishReason.STOP, token_id
        if len(self.token_ids) >= self.request.max_length:
            return FinishReason.LENGTH, None
        return None, None


def _make_mask(request: Request) -> TokenMask | None:
    params = request.message.params
    if params.structured_outputs is None:
        return None
    ignored = request.eos_token_ids if params.ignore_eos else frozenset()
    return TokenMask(request.eos_token_ids | request.stop_token_ids, ignored, params.min_tokens)


def choice_seed(seed: int, index: int) -> int:
    """Choices of one request draw independently, and the same ones again for the same seed."""
    return int.from_bytes(hashlib.sha256(encode(seed, index)).digest()[:8])
