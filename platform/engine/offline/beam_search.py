"""Beam search in Python: what is asked, and what comes back. The field names are vLLM's."""

from dataclasses import dataclass, field
from typing import Literal

from ..field_types import ParameterError
from ..protocol import BeamSearch
from ..sampling_params import SamplingParams
from ..text.tokenizer import Tokenizer
from .lora_request import LoRARequest
from .outputs import Logprobs, RequestOutput


@dataclass(kw_only=True)
class BeamSearchParams:
    """`beam_width` outputs of at most `max_tokens` tokens. Checked as they are made: ParameterError.

    The rules are those of transformers' `generate(num_beams=beam_width)`; `length_penalty` and `early_stopping` mean
    the same.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    """Changes nothing: nothing is drawn."""
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    early_stopping: bool | Literal["never"] = False
    stop_token_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if type(self.beam_width) is not int:
            raise ParameterError("beam_width", f"beam_width must be an integer, got {self.beam_width!r}")
        if isinstance(self.length_penalty, bool) or not isinstance(self.length_penalty, int | float):
            raise ParameterError("length_penalty", f"length_penalty must be a number, got {self.length_penalty!r}")
        if self.early_stopping not in (True, False, "never"):
            raise ParameterError(
                "early_stopping", f'early_stopping must be True, False or "never", got {self.early_stopping!r}'
            )
        try:
            self.sampling_params()
        except ParameterError as error:
            if error.parameter != "n":
                raise
            raise ParameterError("beam_width", str(error).replace("n must", "beam_width must", 1)) from None

    def sampling_params(self) -> SamplingParams:
        return SamplingParams(
            n=self.beam_width,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            stop_token_ids=self.stop_token_ids,
            logprobs=0,
        )

    def search(self) -> BeamSearch:
        return BeamSearch(length_penalty=float(self.length_penalty), early_stopping=self.early_stopping)


@dataclass(slots=True, kw_only=True)
class BeamSearchSequence:
    """One output with its prompt."""

    orig_prompt: str | None
    tokens: list[int]
    """Prompt and output, with the token that ended it."""
    logprobs: list[Logprobs]
    """Of the output's tokens."""
    cum_logprob: float
    text: str
    """Of all `tokens`, special ones too."""
    finish_reason: str | None
    """stop, length or error."""
    stop_reason: int | str | None
    lora_request: LoRARequest | None = None


@dataclass(slots=True, kw_only=True)
class BeamSearchOutput:
    """The outputs of one prompt, best first."""

    sequences: list[BeamSearchSequence]
    error: str | None = None
    """What ended it, where `finish_reason` is error."""


def as_beams(output: RequestOutput, tokenizer: Tokenizer) -> BeamSearchOutput:
    sequences = [
        BeamSearchSequence(
            orig_prompt=output.prompt,
            tokens=(tokens := output.prompt_token_ids + choice.token_ids),
            logprobs=choice.logprobs or [],
            cum_logprob=choice.cumulative_logprob or 0.0,
            text=tokenizer.decode(tokens, skip_special_tokens=False),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            lora_request=output.lora_request,
        )
        for choice in output.outputs
    ]
    return BeamSearchOutput(sequences=sequences, error=output.error)
