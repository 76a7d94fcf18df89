"""Shadow traffic: a share of an alias's answered requests is copied to another version. Responses are discarded."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from loraplex.engine.protocol import LAST
from loraplex.registry.adapters.routes import Candidate
from loraplex.registry.snapshot import ResolvedAdapter
from loraplex.registry.usage.usage import SHADOW

from ..access.caller import Caller
from ..http.errors import ApiError
from ..inference.generation import Answers, Delta, Generation, collect
from ..inference.watch import Started, note_end
from ..observability.request_log import FinishedRequest
from ..routing.tallies import Lane
from ..state import State
from .schemas import AdapterPart, GenerationFields


class Repeatable(Started, Protocol):
    @property
    def fields(self) -> GenerationFields: ...

    def repeat(self, state: State, caller: Caller, changes: Mapping[str, Any]) -> "Repeatable":
        """The same request with some fields changed, for another caller."""


@dataclass(slots=True)
class Copy:
    """A request to repeat when its own answer is complete."""

    state: State
    tenant: str
    call: Repeatable
    adapter: ResolvedAdapter
    candidate: Candidate
    is_greedy: bool
    """Of the user's answer, by the request or by the profile that it was asked by."""
    text: str = ""
    """Of the user's answer, as far as it has come."""

    def hear(self, delta: Delta) -> None:
        self.text += delta.text

    def hear_all(self, answers: Answers) -> None:
        self.text = answers.choices[0].text

    def send(self) -> None:
        """Returns at once; whatever becomes of it, the user does not notice."""
        model = f"{self.adapter.name}@{self.candidate.version}"
        try:
            shadow = self.state.registry.snapshots.current.resolve(model, self.tenant)
        except ValueError:
            shadow = None
        if shadow is None:
            self.state.shadows.count(self.lane, "dropped")
            return
        self.state.shadows.offer(self.lane, shadow.digest, shadow.size, self._ask(model))

    @property
    def lane(self) -> Lane:
        assert self.adapter.route is not None
        route, candidate = self.adapter.route, self.candidate
        return Lane(self.tenant, self.adapter.name, route.alias, candidate.version, candidate.since, shadow=True)

    async def _ask(self, model: str) -> None:
        changes = self._naming(model) | {"stream": False, "stream_options": None, "priority": LAST}
        state = replace(self.state, metrics=self.state.shadows.metrics)
        call = self.call.repeat(state, Caller(self.tenant, SHADOW, frozenset()), changes)
        try:
            with state.quotas.admit_shadow() as admission:
                generations = await call.start(admission)
                for generation in generations:
                    generation.on_end = self._note
                answers = await collect(generations)
        except ApiError as error:
            self._note_error(error)
            return
        self.state.shadows.count(self.lane, "ok")
        if self.is_greedy and generations[0].is_greedy:
            self._compare(answers)

    def _naming(self, model: str) -> dict[str, Any]:
        """The fields that name what runs, as the request named it: as `model`, or with a scale beside the base."""
        parts = self.call.fields.adapters
        return {"model": model} if parts is None else {"adapters": [AdapterPart(model, parts[0].scale)]}

    def _note(self, finished: FinishedRequest, error: Exception | None) -> None:
        if finished.status != "abort":
            note_end(self.state.tallies, self.lane, finished, error)

    def _note_error(self, error: ApiError) -> None:
        """An engine that is away or full drops a copy; what else is refused speaks of the version."""
        self.state.shadows.count(self.lane, "dropped" if error.status == 503 else "error")

    def _compare(self, answers: Answers) -> None:
        """For greedy answers only: all others differ by chance."""
        if len(answers.choices) == 1:
            copies = self.state.tallies.copies(self.lane)
            copies.compared += 1
            copies.equal += answers.choices[0].text == self.text


def draw_copy(state: State, tenant: str, call: Repeatable, generations: Sequence[Generation]) -> Copy | None:
    """A copy of this request, which has begun, if it is one of those that its alias's shadow gets."""
    adapter = None if call.served is None else call.served.routed
    candidate = None if adapter is None or adapter.route is None else adapter.route.shadow
    if adapter is None or candidate is None or candidate.version == adapter.version:
        return None
    if random.uniform(0, 100) >= candidate.shadow:
        return None
    return Copy(state, tenant, call, adapter, candidate, generations[0].is_greedy)
