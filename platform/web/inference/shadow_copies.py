"""Shadow traffic: a share of an alias's answered requests is copied to another version. Responses are discarded."""

import random
from dataclasses import dataclass, replace

from loraplex.engine.protocol import LAST
from loraplex.registry.adapters.routes import Candidate
from loraplex.registry.snapshot import ResolvedAdapter
from loraplex.registry.usage.usage import SHADOW

from ..access.caller import Caller
from ..http.errors import ApiError
from ..observability.request_log import FinishedRequest
from ..routing.tallies import Lane
from .call import Call
from .generate import generate
from .generation import Answers, collect
from .inference import Inference
from .resolve import Served, find_served
from .spec import GenerationSpec
from .watch import note_end


@dataclass(frozen=True, slots=True)
class ShadowCopy:
    """A request to run once more when its own answer is complete."""

    inference: Inference
    tenant: str
    call: Call
    request_id: str
    adapter: ResolvedAdapter
    candidate: Candidate
    is_greedy: bool
    """Of the user's answer, by the request or by the profile that it was asked by."""

    def send(self, text: str) -> None:
        """Returns at once; whatever becomes of it, the user does not notice. `text`: of the user's answer."""
        model, shadows = f"{self.adapter.name}@{self.candidate.version}", self.inference.shadows
        try:
            shadow = self.inference.snapshots.current.resolve(model, self.tenant)
        except ValueError:
            shadow = None
        if shadow is None:
            shadows.count(self.lane, "dropped")
            return
        shadows.offer(self.lane, shadow.digest, shadow.size, self._run(model, text))

    @property
    def lane(self) -> Lane:
        assert self.adapter.route is not None
        route, candidate = self.adapter.route, self.candidate
        return Lane(self.tenant, self.adapter.name, route.alias, candidate.version, candidate.since, shadow=True)

    async def _run(self, model: str, text: str) -> None:
        shadows = self.inference.shadows
        try:
            answers, is_greedy = await self._answers(model)
        except ApiError as error:
            # An engine that is away or full drops a copy; what else is refused speaks of the version.
            shadows.count(self.lane, "dropped" if error.status == 503 else "error")
            return
        shadows.count(self.lane, "ok")
        if self.is_greedy and is_greedy:
            self._compare(answers, text)

    async def _answers(self, model: str) -> tuple[Answers, bool]:
        """And whether they are greedy too."""
        inference = replace(self.inference, metrics=self.inference.shadows.metrics)
        caller, call = Caller(self.tenant, SHADOW, frozenset()), self.call
        with inference.quotas.admit_shadow() as admission:
            served = await self._find_served(inference, caller, model)
            prompts = await call.render(served.text_processor, inference.settings)
            spec, _ = call.spec(served, prompts, inference.max_model_len)
            spec = replace(spec, priority=LAST)
            generations = await generate(inference, caller, spec, self.request_id, admission, self._note)
            return await collect(generations), spec.is_greedy

    async def _find_served(self, inference: Inference, caller: Caller, model: str) -> Served:
        """By `model` as the request named its adapter: as its model, or with a scale beside the base."""
        fields = self.call.fields
        scales = fields.adapter_scales()
        if scales is None:
            return await find_served(inference, caller, model, None)
        [scale] = scales.values()
        return await find_served(inference, caller, fields.model, {model: scale})

    def _note(self, finished: FinishedRequest, error: Exception | None) -> None:
        if finished.status != "abort":
            note_end(self.inference.tallies, self.lane, finished, error)

    def _compare(self, answers: Answers, text: str) -> None:
        """For greedy answers only: all others differ by chance."""
        if len(answers.choices) == 1:
            copies = self.inference.tallies.copies(self.lane)
            copies.compared += 1
            copies.equal += answers.choices[0].text == text


def draw_copy(
    inference: Inference, tenant: str, call: Call, spec: GenerationSpec, request_id: str
) -> ShadowCopy | None:
    """A copy of this request, which has begun, if it is one of those that its alias's shadow gets."""
    adapter = spec.served.routed
    candidate = None if adapter is None or adapter.route is None else adapter.route.shadow
    if adapter is None or candidate is None or candidate.version == adapter.version:
        return None
    if random.uniform(0, 100) >= candidate.shadow:
        return None
    return ShadowCopy(inference, tenant, call, request_id, adapter, candidate, spec.is_greedy)
