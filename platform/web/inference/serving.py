"""From checked prompts and parameters to running generations; shared by the OpenAI endpoints and the playground."""

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from loraplex.engine.ipc.client import EngineUnavailable, RequestRejected
from loraplex.engine.protocol import AdapterRef, GenerateRequest
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.scheduler.activation import explain_absence, find_start

from ..access.caller import Caller
from ..adapters.engine_door import require_ready
from ..http.errors import ApiError, invalid, overloaded
from ..observability.metrics import RequestLabel
from ..quotas.quotas import Admission, account_of, tokens_to_reserve
from ..state import State
from .generation import Generation
from .resolve import Served, ensure_known, explain

Explain = Callable[[EngineUnavailable | RequestRejected], ApiError]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """What to generate: prompts as token ids, the same parameters for all. `prompt_field` names them in errors."""

    served: Served
    prompts: Sequence[list[int]]
    params: SamplingParams
    prompt_field: str
    max_tokens_field: str = "max_tokens"
    priority: int = 0
    cache_salt: str = ""
    shown_tokens: frozenset[int] = frozenset()
    """Special tokens that the text has in any case."""
    explain_refusal: Callable[[ApiError], ApiError] | None = None
    """The engine's refusal in terms of what the request asked for."""


async def start_generations(
    state: State, caller: Caller, spec: GenerationSpec, request_id: str, admission: Admission
) -> list[Generation]:
    """One generation for each prompt, not yet running. Raises ApiError for whatever cannot be served."""
    if state.stopping.is_set():
        raise overloaded("The server is stopping. Try again in a moment.")
    require_ready(state.engine)
    _verify(spec, state)
    await ensure_known(state, spec.served)
    adapters = spec.served.adapters
    for name, (adapter, _) in adapters.items():
        _check_invocation(name, adapter.invocation_tokens, spec)
    _reserve(state, caller, spec, admission)
    params, end_token_id = _ending(spec)
    refs = [AdapterRef(digest=adapter.digest, scale=scale) for adapter, scale in adapters.values()]
    call_id, n = uuid.uuid4().hex, spec.params.n
    requests = [
        GenerateRequest(
            request_id=f"{call_id}-{number}",
            prompt_token_ids=prompt,
            params=params,
            adapters=refs,
            tenant=caller.tenant,
            share=(caller.actor, call_id),
            cache_salt=f"{caller.tenant}\0{spec.cache_salt}",
            priority=spec.priority,
            added_tokens=[] if params.structured_outputs is None else [*spec.served.text_processor.added_tokens],
        )
        for number, prompt in enumerate(spec.prompts)
    ]
    # Sums have no label of their own: their number has no bound.
    model = next(iter(adapters.values()))[0].name if len(adapters) == 1 else state.settings.base_name
    versions = {adapter.name: adapter.version for adapter, _ in adapters.values()}
    label = RequestLabel(caller.actor, model, versions, request_id)
    named = {name: adapter for name, (adapter, _) in adapters.items()}
    words: Explain = partial(explain, state, caller.tenant, caller.only, named)
    if spec.explain_refusal is not None:
        words = partial(_explained, words, spec.explain_refusal)
    generations = [
        Generation(
            engine=state.engine,
            text_processor=spec.served.text_processor,
            request=request,
            metrics=state.metrics,
            label=label,
            explain=words,
            first_index=number * n,
            end_token_id=end_token_id,
            shown_tokens=spec.shown_tokens,
        )
        for number, request in enumerate(requests)
    ]
    admission.run(generations)
    return generations


def _explained(
    explain: Explain, explain_refusal: Callable[[ApiError], ApiError], error: EngineUnavailable | RequestRejected
) -> ApiError:
    return explain_refusal(explain(error))


def _reserve(state: State, caller: Caller, spec: GenerationSpec, admission: Admission) -> None:
    """Raises ApiError 429. From here to the first generation nothing waits, so that what is reserved is used."""
    lengths = [len(prompt) for prompt in spec.prompts]
    n, output, room = spec.params.n, spec.params.max_tokens, state.max_model_len
    tokens = sum(tokens_to_reserve(length, output, n, room - length) for length in lengths)
    digests = {adapter.name: adapter.digest for adapter, _ in spec.served.adapters.values()}
    admission.reserve(account_of(caller.tenant, caller.actor, digests, state.settings.base_name), tokens)


def check_chars(chars: int, state: State, field: str) -> None:
    """Refuse text that is not worth tokenizing."""
    limit = state.settings.max_prompt_chars
    if chars > limit:
        raise invalid(f"{field} has {chars} characters; this server takes at most {limit}.", field, "prompt_too_long")


def _ending(spec: GenerationSpec) -> tuple[SamplingParams, int | None]:
    """The parameters with the adapter's own end token among them, and that token where the client did not name it."""
    params, end = spec.params, spec.served.text_processor.end_token_id
    if end is None or params.ignore_eos or end in params.stop_token_ids:
        return params, None
    return msgspec.structs.replace(params, stop_token_ids=[*params.stop_token_ids, end]), end


def _verify(spec: GenerationSpec, state: State) -> None:
    try:
        spec.params.verify(spec.served.vocab_size)
    except ValueError as error:
        raise invalid(f"{error}.", _named_field(str(error), spec)) from None
    for prompt in spec.prompts:
        _check_prompt(prompt, spec, state)


def _check_prompt(prompt: list[int], spec: GenerationSpec, state: State) -> None:
    field, limit, vocabulary = spec.prompt_field, state.max_model_len, spec.served.vocab_size
    if not prompt:
        raise invalid(f"{field} is empty; at least one token is needed.", field)
    if max(prompt) >= vocabulary or min(prompt) < 0:
        wrong = next(token for token in prompt if not 0 <= token < vocabulary)
        raise invalid(f"{field} has token id {wrong}, outside the vocabulary of {vocabulary}.", field)
    output = spec.params.max_tokens
    # The engine keeps room for one token even when none is asked for.
    if len(prompt) + (output or 1) > limit:
        raise _too_long(len(prompt), output, limit, spec)


def _check_invocation(name: str, invocation_tokens: Sequence[int], spec: GenerationSpec) -> None:
    """Refuse a prompt that never switches an adapter on: the engine would, but only once it has loaded it."""
    if any(find_start(prompt, invocation_tokens) is None for prompt in spec.prompts):
        text = spec.served.text_processor.tokenizer.decode(list(invocation_tokens), skip_special_tokens=False)
        message = explain_absence(f"'{name}'", invocation_tokens, text)
        raise invalid(f"{message}.", spec.prompt_field, "adapter_not_invoked")


def _too_long(prompt: int, output: int | None, limit: int, spec: GenerationSpec) -> ApiError:
    fits = prompt < limit and output is not None
    advice = f"Ask for at most {limit - prompt} tokens." if fits else f"Shorten it to at most {limit - 1} tokens."
    asked = f" and {output} of output were asked for" if fits else ""
    message = f"This model takes {limit} tokens of prompt and output; the prompt has {prompt}{asked}. {advice}"
    return invalid(message, spec.max_tokens_field if fits else spec.prompt_field, "context_length_exceeded")


def field_of(message: str) -> str | None:
    """The first parameter that the message of SamplingParams.verify() names."""
    words = re.findall(r"\w+", message)
    return next((word for word in words if word in SamplingParams.__struct_fields__), None)


def _named_field(message: str, spec: GenerationSpec) -> str | None:
    field = field_of(message)
    return spec.max_tokens_field if field == "max_tokens" else field
