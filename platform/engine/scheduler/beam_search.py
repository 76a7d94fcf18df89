"""Beam search: which continuations of a prompt live on, step by step, and which outputs are the best in the end.

The rules are those of transformers' `generate(num_beams=...)`: of all continuations by one token the `width` most
likely live on. One that ends enters the finished ones if it is among the `width` most likely of its step.
"""

from dataclasses import dataclass
from typing import Final

from ..field_types import ParameterError
from ..protocol import FinishReason, GenerateRequest, TokenLogprob
from ..sampling_params import SamplingParams

PLAIN: Final = SamplingParams()
TAKEN: Final = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed"),
        *("n", "max_tokens", "stop_token_ids", "ignore_eos", "logprobs"),
        *("detokenize", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"),
        *("output_kind", "truncate_prompt_tokens"),
    }
)
"""Parameters that a beam search takes. It draws nothing, so those of the first line change nothing."""


@dataclass(frozen=True, slots=True)
class Path:
    """An output, from its last token back to its first."""

    entry: TokenLogprob
    before: "Path | None"

    def entries(self, tops: int) -> list[TokenLogprob]:
        """Of its tokens in their order, each with the `tops` most likely ones at its place."""
        found = list[TokenLogprob]()
        path: Path | None = self
        while path is not None:
            entry = path.entry
            found.append(TokenLogprob(entry.token_id, entry.logprob, entry.rank, entry.top[:tops]))
            path = path.before
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Beam:
    """One that goes on: the output of `parent` and one token more."""

    parent: int
    """Index of the choice that computed it."""
    path: Path
    score: float
    """Sum of the tokens' log-probabilities."""

    @property
    def token_id(self) -> int:
        return self.path.entry.token_id


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One that has ended."""

    path: Path
    score: float
    """Sum of the log-probabilities, divided by a power of its length."""
    finish_reason: FinishReason
    stop_reason: int | None


class BeamSearch:
    """Of one request. Each of its choices computes one beam; `offer` what follows each, then `choose`."""

    def __init__(
        self,
        message: GenerateRequest,
        max_new_tokens: int,
        eos_token_ids: frozenset[int],
        stop_token_ids: frozenset[int],
    ) -> None:
        assert message.beam_search is not None
        self.width = message.params.n
        self.finished: list[Hypothesis] = []
        """Best first, at most `width`."""
        self.ended = False
        self._length_penalty = message.beam_search.length_penalty
        self._early_stopping = message.beam_search.early_stopping
        self._max_new_tokens = max_new_tokens
        self._eos_token_ids, self._stop_token_ids = eos_token_ids, stop_token_ids
        self._length = 0
        """Tokens of every beam."""
        self._live: dict[int, tuple[Path | None, float]] = {0: (None, 0.0)}
        self._offers: dict[int, list[tuple[int, float]]] = {}

    @property
    def num_candidates(self) -> int:
        """Most likely tokens of each beam that it takes to find `width` that go on."""
        return self.width + len(self._eos_token_ids | self._stop_token_ids)

    def offer(self, index: int, top: list[tuple[int, float]]) -> bool:
        """Tokens with log-probabilities that may follow the beam of choice `index`, most likely first. Whether all
        beams have been offered."""
        self._offers[index] = top
        return self._offers.keys() == self._live.keys()

    def choose(self) -> dict[int, Beam]:
        """Which beam each choice computes from now on; empty: it has ended. A beam's parent goes on itself, if any."""
        self._length += 1
        candidates = self._candidates()
        self._finish(candidates[: self.width])
        going_on = [] if self._length == self._max_new_tokens else [it for it in candidates if not self._ends(it)]
        beams = going_on[: self.width]
        self.ended = not beams or not self._may_improve(beams[0].score)
        if self.ended:
            return {}
        placed = _place(beams)
        self._live = {index: (beam.path, beam.score) for index, beam in placed.items()}
        self._offers = {}
        return placed

    def _candidates(self) -> list[Beam]:
        """Most likely first."""
        found = [
            Beam(index, Path(TokenLogprob(token_id, logprob, rank, self._offers[index]), path), score + logprob)
            for index, (path, score) in self._live.items()
            for rank, (token_id, logprob) in enumerate(self._offers[index], 1)
            if logprob > float("-inf")
        ]
        return sorted(found, key=lambda beam: -beam.score)

    def _ends(self, beam: Beam) -> bool:
        return beam.token_id in self._eos_token_ids or beam.token_id in self._stop_token_ids

    def _finish(self, most_likely: list[Beam]) -> None:
        for beam in most_likely:
            if self._ends(beam):
                stop = None if beam.token_id in self._eos_token_ids else beam.token_id
                self.finished.append(Hypothesis(beam.path, self._final(beam.score), FinishReason.STOP, stop))
            elif self._length == self._max_new_tokens:
                self.finished.append(Hypothesis(beam.path, self._final(beam.score), FinishReason.LENGTH, None))
        self.finished = sorted(self.finished, key=lambda hypothesis: -hypothesis.score)[: self.width]

    def _final(self, score: float, length: int | None = None) -> float:
        return float(score / (length or self._length) ** self._length_penalty)

    def _may_improve(self, best: float) -> bool:
        """Whether a beam can still become better than the worst of the finished ones."""
        if len(self.finished) < self.width:
            return True
        if self._early_stopping is True:
            return False
        hopeful = self._early_stopping == "never" and self._length_penalty > 0
        return self._final(best, self._max_new_tokens if hopeful else None) > self.finished[-1].score


def check_beam_params(params: SamplingParams) -> None:
    """ParameterError for what a beam search cannot have."""
    for name in params.__struct_fields__:
        if name not in TAKEN and getattr(params, name) != getattr(PLAIN, name):
            form = params.structured_outputs
            said = form.field if form is not None and name == "structured_outputs" else name
            raise ParameterError(said, f"{said} is not supported in a beam search; leave it out")
    if params.max_tokens == 0:
        raise ParameterError("max_tokens", "max_tokens must be at least 1 in a beam search, got 0")


def check_width(width: int, num_ends: int, most: int) -> None:
    """ParameterError for too wide a search. `most`: tokens that the sampler tells at a position."""
    if width + num_ends > most:
        raise ParameterError(
            "n",
            f"a beam search of width {width} with {num_ends} tokens that end an output looks at "
            f"{width + num_ends} tokens a beam, and at most {most} can be had; lower n",
        )


def _place(beams: list[Beam]) -> dict[int, Beam]:
    """A choice for each: the first child of a beam stays with it, and the others take those that nobody continues."""
    placed: dict[int, Beam] = {}
    others = [beam for beam in beams if placed.setdefault(beam.parent, beam) is not beam]
    free = (index for index in range(len(beams) + len(placed)) if index not in placed)
    return placed | dict(zip(free, others, strict=False))
