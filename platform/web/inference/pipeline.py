"""The line that every request to a model takes, and what wraps it: quotas, routing, usage, words for refusals."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from loraplex.engine.protocol import LAST

from ..access.caller import Caller
from ..http.errors import ApiError
from ..quotas.quotas import Admission
from .call import Call, Format
from .generate import generate
from .generation import Generation
from .inference import Inference
from .resolve import find_served
from .shadow_copies import ShadowCopy, draw_copy
from .speaks import check_speaks
from .watch import version_header, watched


@dataclass(frozen=True, slots=True)
class Running:
    """A request that has begun. `headers` say what its limits leave, and which versions answer."""

    generations: Sequence[Generation]
    format: Format
    headers: Mapping[str, str]
    copy: ShadowCopy | None


@asynccontextmanager
async def running(inference: Inference, caller: Caller, call: Call, request_id: str) -> AsyncIterator[Running]:
    """The request begins, and its share of every limit is held until the block ends. Raises ApiError."""
    fields = call.fields
    with _admitted(inference, caller) as admission, _refusals_explained(call):
        scales, asker = fields.adapter_scales(), fields.asker(caller.actor, request_id)
        served = await find_served(inference, caller, fields.model, scales, asker)
        if call.wants_text:
            check_speaks(inference.engine)
        with watched(inference.tallies, inference.callers, caller.tenant, served) as on_end:
            prompts = await call.render(served.text_processor, inference.settings)
            spec, answer_format = call.spec(served, prompts, inference.max_model_len)
            if caller.books is not None:
                spec = replace(spec, priority=LAST)
            generations = await generate(inference, caller, spec, request_id, admission, on_end)
        copy = draw_copy(inference, caller.tenant, call, spec, request_id)
        yield Running(generations, answer_format, admission.headers() | version_header(served), copy)


@contextmanager
def _admitted(inference: Inference, caller: Caller) -> Iterator[Admission]:
    """A place among the requests in flight, and what the quotas grant, both until the block ends."""
    slots, quotas = inference.requests if caller.books is None else inference.background, inference.quotas
    with slots.hold(), quotas.admit(caller.tenant, caller.actor, caller.quota, caller.books) as admission:
        yield admission


@contextmanager
def _refusals_explained(call: Call) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise call.explain_refusal(error) from error
