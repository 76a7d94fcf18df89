"""GenerationSpec: what to generate, and whether this model can."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from loraplex.engine.field_types import ParameterError
from loraplex.engine.pooling.wanted import Pooling
from loraplex.engine.protocol import BeamSearch
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.scheduler.activation import explain_absence, find_start
from loraplex.engine.scheduler.beam_search import check_beam_params

from ..http.errors import ApiError, invalid
from .resolve import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """What to generate: prompts as token ids, the same parameters for all. `prompt_field` names them in errors."""

    served: Served
    prompts: Sequence[list[int]]
    params: SamplingParams
    prompt_field: str
    beam_search: BeamSearch | None = None
    """None: outputs are drawn."""
    max_tokens_field: str = "max_tokens"
    priority: int = 0
    cache_salt: str = ""
    shown_tokens: frozenset[int] = frozenset()
    """Special tokens that the text has in any case."""
    pooling: Pooling | None = None
    """Instead of a text, one vector of each prompt; `params` are the defaults then."""
    explain_refusal: Callable[[ApiError], ApiError] | None = None
    """The engine's refusal in terms of what the request asked for."""

    @property
    def is_greedy(self) -> bool:
        """Nothing of its answer is drawn."""
        return self.params.temperature == 0 or self.beam_search is not None


def check_chars(chars: int, limit: int, field: str) -> None:
    """Refuse text that is not worth tokenizing."""
    if chars > limit:
        raise invalid(f"{field} has {chars} characters; this server takes at most {limit}.", field, "prompt_too_long")


def check_spec(spec: GenerationSpec, max_model_len: int) -> None:
    """Raises ApiError for parameters and prompts that this model cannot run."""
    with parameters_checked(spec.max_tokens_field):
        spec.params.verify(spec.served.vocab_size)
        if spec.beam_search is not None:
            check_beam_params(spec.params)
    for prompt in spec.prompts:
        _check_prompt(prompt, spec, max_model_len)


def check_invocation(spec: GenerationSpec) -> None:
    """Refuse a prompt that never switches an adapter on: the engine would, but only once it has loaded it."""
    for name, (adapter, _) in spec.served.adapters.items():
        tokens = adapter.invocation_tokens
        if any(find_start(prompt, tokens) is None for prompt in spec.prompts):
            text = spec.served.text_processor.tokenizer.decode(list(tokens), skip_special_tokens=False)
            message = explain_absence(f"'{name}'", tokens, text)
            raise invalid(f"{message}.", spec.prompt_field, "adapter_not_invoked")


@contextmanager
def parameters_checked(max_tokens_field: str = "max_tokens") -> Iterator[None]:
    """Parameters that cannot be are refused with the request's field. `max_tokens_field`: what it calls max_tokens."""
    try:
        yield
    except ParameterError as error:
        field = max_tokens_field if error.parameter == "max_tokens" else error.parameter
        raise invalid(f"{error}.", field) from None


def _check_prompt(prompt: list[int], spec: GenerationSpec, limit: int) -> None:
    field, vocabulary = spec.prompt_field, spec.served.vocab_size
    if not prompt:
        raise invalid(f"{field} is empty; at least one token is needed.", field)
    if max(prompt) >= vocabulary or min(prompt) < 0:
        wrong = next(token for token in prompt if not 0 <= token < vocabulary)
        raise invalid(f"{field} has token id {wrong}, outside the vocabulary of {vocabulary}.", field)
    if spec.pooling is not None:
        _check_pooled(len(prompt), limit, field)
        return
    output = spec.params.max_tokens
    # The engine keeps room for one token even when none is asked for.
    if len(prompt) + (output or 1) > limit:
        raise _too_long(len(prompt), output, limit, spec)


def _check_pooled(prompt: int, limit: int, field: str) -> None:
    if prompt > limit:
        asked = f"your {field} resulted in {prompt} tokens. Shorten it to at most {limit} tokens"
        message = f"This model's maximum context length is {limit} tokens. However, {asked}."
        raise invalid(message, field, "context_length_exceeded")


def _too_long(prompt: int, output: int | None, limit: int, spec: GenerationSpec) -> ApiError:
    """In OpenAI's words: clients look for them."""
    field = spec.prompt_field
    if prompt < limit and output is not None:
        field = spec.max_tokens_field
        asked = (
            f"you requested {prompt + output} tokens ({prompt} in the {spec.prompt_field}, {output} in the completion)"
        )
        advice = f"Ask for at most {limit - prompt} tokens."
    else:
        asked, advice = f"your {field} resulted in {prompt} tokens", f"Shorten it to at most {limit - 1} tokens."
    message = f"This model's maximum context length is {limit} tokens. However, {asked}. {advice}"
    return invalid(message, field, "context_length_exceeded")
