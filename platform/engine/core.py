"""EngineCore: the engine's loop body: schedule, submit, commit what has ended."""

import logging
import time
from collections.abc import Callable

from .constraints.grammar_manager import GrammarManager
from .device.faults import judge
from .histogram import STEP_TOKENS, Histogram, LoadTimes
from .protocol import EngineStatus, FromEngine, GenerateRequest, Tokens
from .runner.clipping import ClippingTotals
from .runner.steps import Runner, StepsInFlight
from .scheduler.plan import StepPlan
from .scheduler.scheduler import Scheduler
from .scheduler.status import count_adapters, count_tenants, map_blocks
from .status import AdapterStatus

logger = logging.getLogger(__name__)


class EngineCore:
    """`strict` raises on an integrity problem at idle, for tests; production counts and logs it.

    `describe_adapters` lists all registered adapters; running and waiting are filled in here. `count_evictions` tells
    all so far, of adapters that have gone too. `grammar_manager` says what constrained choices may draw;
    None: there are none.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        describe_adapters: Callable[[], list[AdapterStatus]] = list,
        count_evictions: Callable[[], int] = int,
        strict: bool = False,
        grammar_manager: GrammarManager | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.progressed = False
        """Whether the last step began or ended anything; False while all requests wait for adapters."""
        self._grammar_manager = grammar_manager
        self._in_flight = StepsInFlight(runner)
        self._describe_adapters = describe_adapters
        self._count_evictions = count_evictions
        self._strict = strict
        self._beats = 0
        self._steps = 0
        self._step_seconds = 0.0
        self._model_seconds = 0.0
        self._device_seconds: float | None = None
        self._integrity_errors = 0
        self._step_tokens = Histogram(STEP_TOKENS)
        self._load_times = LoadTimes()
        self._clipping = ClippingTotals()

    def add(self, request: GenerateRequest) -> list[FromEngine]:
        """Answers what others are told. Raises ValueError for what is wrong with it or can never run, Overloaded when
        the queue is full."""
        if self._grammar_manager is None:
            assert request.params.structured_outputs is None, "an engine without grammar_manager"
            return [*self.scheduler.add(request)[1]]
        self._grammar_manager.check(request)
        added, displaced = self.scheduler.add(request)
        self._grammar_manager.follow(added)
        return [*displaced]

    def abort(self, request_id: str, index: int | None = None) -> list[Tokens]:
        """Last messages of the request's unfinished choices, or of its choice `index`; none if that has ended."""
        messages = self.scheduler.abort(request_id, index)
        self._check_idle()
        return messages

    def has_work(self) -> bool:
        return self.scheduler.has_work() or bool(self._in_flight)

    def step(self) -> list[FromEngine]:
        """Begin a step, and end the oldest one when the runner takes no more or there is nothing to begin.

        An error in a step ends its requests and no others. DeviceLost: there is no point in another step.
        """
        begin = time.perf_counter()
        messages = self._learn_masks()
        plan = self.scheduler.schedule()
        self.progressed = bool(plan.scheduled or self._in_flight)
        messages += self._carry_out(plan)
        self._step_seconds += time.perf_counter() - begin
        self._check_idle()
        return messages

    @property
    def just_started(self) -> list[str]:
        """Ids of the requests that the last step took out of the queue."""
        return self.scheduler.request_table.just_started

    def status(self) -> EngineStatus:
        if self._grammar_manager is not None:
            self._grammar_manager.drop_ended()
        request_table, pool = self.scheduler.request_table, self.scheduler.pool
        states = request_table.states.pool
        adapters = self._describe_adapters()
        count_adapters(adapters, request_table)
        base_clipping = self._clipping.tell(adapters)
        self._beats += 1
        return EngineStatus(
            sequence=self._beats,
            running=len(request_table.running),
            waiting=len(request_table.queue) + len(request_table.preempted),
            free_blocks=pool.num_free,
            cached_blocks=pool.num_cached,
            free_states=0 if states is None else states.num_free,
            cached_states=0 if states is None else states.num_cached,
            block_map=map_blocks([adapter.digest for adapter in adapters], request_table),
            adapters=adapters,
            tenants=count_tenants(request_table, self.scheduler.queries_by_tenant, self.scheduler.hits_by_tenant),
            adapter_bytes_used=sum(adapter.bytes for adapter in adapters if adapter.state == "resident"),
            adapter_host_bytes_used=sum(adapter.host_bytes for adapter in adapters),
            adapter_evictions=self._count_evictions(),
            steps=self._steps,
            prompt_tokens=self.scheduler.prompt_tokens,
            generation_tokens=self.scheduler.generation_tokens,
            prefix_queries=self.scheduler.prefix_queries,
            prefix_hits=self.scheduler.prefix_hits,
            preemptions=request_table.preemptions,
            integrity_errors=self._integrity_errors,
            step_seconds=self._step_seconds,
            host_seconds=self._step_seconds - self._model_seconds,
            device_seconds=self._device_seconds,
            step_tokens=self._step_tokens.distribution(),
            adapter_load_seconds=self._load_times.note(adapters),
            base_clipping=base_clipping,
            structured=None if self._grammar_manager is None else self._grammar_manager.counts.tell(),
        )

    def _learn_masks(self) -> list[FromEngine]:
        """What constrained choices may draw, as far as it is known in time; ends those that cannot go on."""
        failures = self._grammar_manager.collect() if self._grammar_manager else ()
        fail = self.scheduler.fail
        return [message for it in failures for message in fail(it.request, it.kind, it.message, it.param)]

    def _count(self, plan: StepPlan) -> None:
        self._steps += 1
        self._step_tokens.observe(sum(item.count for item in plan.scheduled))

    def _carry_out(self, plan: StepPlan) -> list[FromEngine]:
        if plan.scheduled:
            self._count(plan)
            self._in_flight.begin(plan)
            return self._end_oldest() if self._in_flight.full else []
        return [*plan.failures, *(self._end_oldest() if self._in_flight else [])]

    def _end_oldest(self) -> list[FromEngine]:
        plan, handle = self._in_flight.take()
        try:
            result = handle.result()
        except Exception as error:
            logger.exception("a step of %d sequences failed", len(plan.scheduled))
            fault = judge(error)
            return self.scheduler.fail_step(plan, fault.message, fault.kind)
        self._model_seconds += result.model_seconds
        if result.device_seconds is not None:
            self._device_seconds = (self._device_seconds or 0.0) + result.device_seconds
        self._clipping.add(result.clipping)
        self._integrity_errors += len(result.stale)
        messages = self.scheduler.commit(plan, result)
        if self._grammar_manager:
            self._grammar_manager.advance(plan.scheduled)
        return messages

    def _check_idle(self) -> None:
        """When the last request has ended, nothing may be held."""
        if self.has_work():
            return
        problems = self.scheduler.request_table.check_integrity()
        self._integrity_errors += len(problems)
        for problem in problems:
            logger.error("integrity: %s", problem)
        assert not (problems and self._strict), problems
