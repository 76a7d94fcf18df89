"""generate: from a spec to generations of the engine, paid for and ready to run."""

import uuid

import msgspec

from loraplex.engine.ipc.client import EngineUnavailable, RequestRejected
from loraplex.engine.protocol import AdapterRef, GenerateRequest
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.text.bad_word_tokens import bad_word_tokens
from loraplex.engine.text.tokenizer import second_text

from ..access.caller import Caller
from ..adapters.engine_door import require_ready
from ..http.errors import ApiError, overloaded
from ..observability.metrics import RequestLabel
from ..quotas.quotas import Admission, account_of, tokens_to_reserve
from .generation import Explain, Generation, OnEnd
from .inference import Inference
from .resolve import ensure_known, explain
from .spec import GenerationSpec, check_invocation, check_spec, parameters_checked


async def generate(
    inference: Inference,
    caller: Caller,
    spec: GenerationSpec,
    request_id: str,
    admission: Admission,
    on_end: OnEnd | None = None,
) -> list[Generation]:
    """One generation for each prompt, not yet running. Raises ApiError for whatever cannot be served.

    `on_end` is told how each of them went.
    """
    if inference.stopping.is_set():
        raise overloaded("The server is stopping. Try again in a moment.")
    require_ready(inference.engine)
    check_spec(spec, inference.max_model_len)
    await ensure_known(inference.reconciler, spec.served)
    check_invocation(spec)
    _reserve(inference, caller, spec, admission)
    params, end_token_ids = _ending(spec)
    label, words = _label(inference, caller, spec, request_id), _explain(inference, caller, spec)
    generations = [
        Generation(
            engine=inference.engine,
            text_processor=spec.served.text_processor,
            request=request,
            metrics=inference.metrics,
            label=label,
            explain=words,
            first_index=number * params.n,
            end_token_ids=end_token_ids,
            shown_tokens=spec.shown_tokens,
            on_end=on_end,
            tracing=inference.tracing,
        )
        for number, request in enumerate(_requests(caller, spec, params))
    ]
    admission.run(generations)
    return generations


def _reserve(inference: Inference, caller: Caller, spec: GenerationSpec, admission: Admission) -> None:
    """Raises ApiError 429. From here to the first generation nothing waits, so that what is reserved is used."""
    lengths = [len(prompt) for prompt in spec.prompts]
    output = spec.params.max_tokens if spec.pooling is None else 0
    n, room = spec.params.n, inference.max_model_len
    tokens = sum(tokens_to_reserve(length, output, n, room - length) for length in lengths)
    digests = {adapter.name: adapter.digest for adapter, _ in spec.served.adapters.values()}
    admission.reserve(account_of(caller.tenant, caller.actor, digests, inference.settings.base_name), tokens)


def _ending(spec: GenerationSpec) -> tuple[SamplingParams, frozenset[int]]:
    """The parameters with the model's own end tokens among them, and those that the client did not name."""
    params = spec.params
    if spec.pooling is not None or params.ignore_eos:
        return params, frozenset()
    ends = spec.served.text_processor.end_token_ids - set(params.stop_token_ids)
    named = [*params.stop_token_ids, *sorted(ends)]
    return msgspec.structs.replace(params, stop_token_ids=named) if ends else params, ends


def _requests(caller: Caller, spec: GenerationSpec, params: SamplingParams) -> list[GenerateRequest]:
    call_id = uuid.uuid4().hex
    with parameters_checked():
        bad_words = bad_word_tokens(params.bad_words, spec.served.text_processor.tokenizer)
    return [
        GenerateRequest(
            request_id=f"{call_id}-{number}",
            prompt_token_ids=list(prompt),
            second_text=second_text(prompt),
            params=params,
            adapters=[AdapterRef(digest=one.digest, scale=scale) for one, scale in spec.served.adapters.values()],
            tenant=caller.tenant,
            share=(caller.actor, call_id),
            cache_salt=f"{caller.tenant}\0{spec.cache_salt}",
            priority=spec.priority,
            beam_search=spec.beam_search,
            bad_words=bad_words,
            pooling=spec.pooling,
            added_tokens=[] if params.structured_outputs is None else [*spec.served.text_processor.added_tokens],
        )
        for number, prompt in enumerate(spec.prompts)
    ]


def _label(inference: Inference, caller: Caller, spec: GenerationSpec, request_id: str) -> RequestLabel:
    """Sums have no label of their own: their number has no bound."""
    versions = {adapter.name: adapter.version for adapter, _ in spec.served.adapters.values()}
    model = next(iter(versions)) if len(spec.served.adapters) == 1 else inference.settings.base_name
    return RequestLabel(caller.actor, model, versions, request_id)


def _explain(inference: Inference, caller: Caller, spec: GenerationSpec) -> Explain:
    named = {name: adapter for name, (adapter, _) in spec.served.adapters.items()}

    def told(error: EngineUnavailable | RequestRejected) -> ApiError:
        found = explain(inference.snapshots, caller, named, error)
        return found if spec.explain_refusal is None else spec.explain_refusal(found)

    return told
