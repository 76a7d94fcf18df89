"""What becomes of constrained choices when their process is late, hangs or dies; on a clock of the test's own."""

from collections.abc import Callable

import pytest

from loraplex.engine.constraints.grammar_manager import MOST_LIVES, GrammarManager
from loraplex.engine.constraints.limits import COMPILE_SECONDS, SILENT_SECONDS, WAIT_SECONDS
from loraplex.engine.constraints.messages import (
    Advance,
    Allowed,
    Began,
    Close,
    FromGrammars,
    Open,
    Refused,
    ToGrammars,
)
from loraplex.engine.constraints.orders import Orders
from loraplex.engine.field_types import ParameterError
from loraplex.engine.protocol import GenerateRequest
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.scheduler.plan import Scheduled
from loraplex.engine.scheduler.sequence import Request, Status
from loraplex.engine.structured_outputs import StructuredOutputs

TOKENS = b"\x38"


class FakeProcess:
    def __init__(self, clock: "Clock") -> None:
        self.ended, self.killed = False, False
        self.heard: list[ToGrammars] = []
        self.answers: list[FromGrammars] = []
        self._clock = clock

    def send(self, message: ToGrammars) -> None:
        self.heard.append(message)

    def receive(self, seconds: float) -> list[FromGrammars]:
        answers, self.answers = self.answers, []
        if not answers:
            self._clock.now += seconds
        return answers

    def kill(self) -> None:
        self.killed = True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Bench:
    def __init__(self) -> None:
        self.clock = Clock()
        self.processes: list[FakeProcess] = []
        self.grammar_manager = GrammarManager(self._start, self.clock)

    @property
    def process(self) -> FakeProcess:
        return self.processes[-1]

    def _start(self) -> FakeProcess:
        self.processes.append(FakeProcess(self.clock))
        return self.process

    def follow(self, regex: str = "a", n: int = 1, tenant: str = "") -> Request:
        form = StructuredOutputs(regex=regex, field="guided_regex")
        params = SamplingParams(n=n, max_tokens=99, structured_outputs=form)
        message = GenerateRequest(request_id=regex, prompt_token_ids=[1, 2], params=params, tenant=tenant)
        self.grammar_manager.check(message)
        request = Request(message, 0, 0.0, max_length=101, eos_token_ids=frozenset({2}), fingerprint="")
        for sequence in request.sequences:
            sequence.status = Status.RUNNING
        self.grammar_manager.follow(request)
        return request

    def answer(self, *answers: FromGrammars) -> list[tuple[str, str]]:
        self.process.answers += answers
        failures = self.grammar_manager.collect()
        assert all(failure.param == ("guided_regex" if failure.kind == "invalid" else None) for failure in failures)
        return [(failure.request.id, failure.kind) for failure in failures]

    def failed(self) -> dict[str, int]:
        """Reasons that were counted."""
        return {reason: count for reason, count in self.grammar_manager.counts.failed.items() if count}

    def draw(self, request: Request, token: int) -> None:
        sequence = request.sequences[0]
        sequence.append(token)
        self.grammar_manager.advance([Scheduled(sequence, 0, 1, True)])


@pytest.fixture
def bench() -> Bench:
    return Bench()


def allowed(choice: int) -> Allowed:
    return Allowed(choice=choice, tokens=TOKENS, complete=False)


def test_without_constrained_requests_there_is_no_process(bench: Bench) -> None:
    message = GenerateRequest(request_id="free", prompt_token_ids=[1], params=SamplingParams())
    bench.grammar_manager.follow(Request(message, 0, 0.0, max_length=9, eos_token_ids=frozenset(), fingerprint=""))
    bench.grammar_manager.advance([])
    assert bench.grammar_manager.collect() == [] and not bench.processes


def test_each_choice_is_opened_advanced_and_closed(bench: Bench) -> None:
    request = bench.follow(n=2)
    assert [type(message) for message in bench.process.heard] == [Open, Open]
    assert bench.answer(Began(choice=0), allowed(0), allowed(1)) == []
    assert not any(sequence.lacks_mask for sequence in request.sequences)
    bench.draw(request, 3)
    assert bench.process.heard[2:] == [Advance(drawn=[(0, [3])])] and request.sequences[0].lacks_mask
    bench.answer(allowed(0))
    assert not request.sequences[0].lacks_mask
    for sequence in request.sequences:
        sequence.status = Status.FINISHED
    bench.grammar_manager.drop_ended()
    assert bench.process.heard[3:] == [Close(choices=[0, 1])] and not len(bench.grammar_manager)


def test_a_late_answer_holds_a_step_up_for_a_moment_and_only_once(bench: Bench) -> None:
    request = bench.follow()
    bench.answer(allowed(0))
    bench.draw(request, 3)
    begun = bench.clock.now
    assert bench.grammar_manager.collect() == [] and bench.clock.now == pytest.approx(begun + WAIT_SECONDS)
    assert bench.grammar_manager.collect() == [] and bench.clock.now == pytest.approx(begun + WAIT_SECONDS)
    assert request.sequences[0].lacks_mask
    told = bench.grammar_manager.counts.tell()
    assert (told.late_masks, told.mask_seconds.total) == (1, pytest.approx(WAIT_SECONDS))
    bench.answer(allowed(0))
    bench.draw(request, 3)
    bench.answer(allowed(0))
    told = bench.grammar_manager.counts.tell()
    assert (told.late_masks, sum(told.mask_seconds.counts)) == (1, 2)


def test_a_compilation_is_not_waited_for(bench: Bench) -> None:
    bench.follow()
    begun = bench.clock.now
    assert bench.answer(Began(choice=0)) == [] and bench.clock.now == begun


def test_what_is_refused_ends_its_request_alone(bench: Bench) -> None:
    bench.follow("a")
    good = bench.follow("b")
    assert bench.answer(Refused(choice=0, reason="no", compile_seconds=0.04), allowed(1)) == [("a", "invalid")]
    bench.draw(good, 3)
    assert bench.answer(Refused(choice=1, reason="too many items")) == [("b", "invalid")]
    assert bench.failed() == {"not_compiled": 1, "cut_short": 1}
    told = bench.grammar_manager.counts.tell()
    assert (told.requests["regex"], told.compile_seconds.total, told.restarts) == (2, 0.04, 0)


@pytest.mark.parametrize("how", ["hangs", "dies"])
def test_a_grammar_that_ends_its_process_is_to_blame_and_others_go_on_where_they_were(bench: Bench, how: str) -> None:
    good = bench.follow("good")
    bench.answer(allowed(0))
    bench.draw(good, 3)
    bench.follow("bad")
    bench.answer(Began(choice=1))
    if how == "hangs":
        bench.clock.now += COMPILE_SECONDS + 0.1
    else:
        bench.process.ended = True
    assert bench.answer() == [("bad", "invalid")]
    assert len(bench.processes) == 2 and bench.processes[0].killed
    assert bench.process.heard == [Open(choice=0, kind="regex", text="good", tokens=[3], compiled_before=True)]
    bench.answer(allowed(0))
    assert not good.sequences[0].lacks_mask
    with pytest.raises(ParameterError, match=r"guided_regex cannot be used: .* simplify it") as refused:
        bench.follow("bad")
    assert refused.value.parameter == "guided_regex"
    assert bench.failed() == {"too_slow" if how == "hangs" else "crashed": 2}
    told = bench.grammar_manager.counts.tell()
    assert (told.requests["regex"], told.restarts, sum(told.compile_seconds.counts)) == (3, 1, 1)


def test_after_a_process_who_waited_longest_for_a_turn_goes_first(bench: Bench) -> None:
    """Two tenants whose grammars end one process after the other do not keep a third one out."""
    for number, tenant in enumerate("aabbc"):
        bench.follow(f"{tenant} {number}", tenant=tenant)
    orders = []
    for _ in range(3):
        first = bench.process.heard[0]
        assert isinstance(first, Open)
        bench.answer(Began(choice=first.choice))
        bench.clock.now += COMPILE_SECONDS + 0.1
        bench.answer()
        orders.append(first.tenant)
    assert orders == ["a", "b", "c"]


def test_what_is_compiled_for_a_request_that_has_ended_keeps_nobody_back(bench: Bench) -> None:
    gone, busy = bench.follow("bad"), bench.follow("busy")
    bench.answer(Began(choice=0), allowed(1))
    gone.sequences[0].status = Status.FINISHED
    waits = bench.follow("next")
    bench.clock.now += COMPILE_SECONDS + 0.1
    bench.draw(busy, 3)
    assert bench.answer(allowed(1)) == []
    assert [message.text for message in bench.process.heard if isinstance(message, Open)] == ["busy", "next"]
    assert bench.answer(allowed(1), allowed(2)) == []
    assert not waits.sequences[0].lacks_mask


def test_what_is_compiled_for_nobody_ends(bench: Bench) -> None:
    bench.follow("bad").sequences[0].status = Status.FINISHED
    bench.process.answers.append(Began(choice=0))
    other = bench.follow("other")
    bench.answer()
    other.sequences[0].status = Status.FINISHED
    bench.grammar_manager.drop_ended()
    assert not bench.process.killed
    bench.clock.now += COMPILE_SECONDS + 0.1
    bench.grammar_manager.drop_ended()
    assert bench.process.killed and len(bench.processes) == 1


def test_a_compilation_that_ended_unheard_is_not_taken_for_one_that_hangs(bench: Bench) -> None:
    gone, good = bench.follow("gone"), bench.follow("good")
    bench.answer(Began(choice=0), allowed(1))
    gone.sequences[0].status = Status.FINISHED
    bench.grammar_manager.drop_ended()
    bench.clock.now += COMPILE_SECONDS + 0.1
    assert bench.answer(allowed(0)) == [] and not bench.process.killed
    good.sequences[0].status = Status.FINISHED
    bench.grammar_manager.drop_ended()
    assert not bench.process.killed


def test_all_choices_of_a_grammar_that_hangs_end_with_it(bench: Bench) -> None:
    bench.follow("bad", n=2)
    bench.answer(Began(choice=0))
    bench.clock.now += COMPILE_SECONDS + 0.1
    assert set(bench.answer()) == {("bad", "invalid")}
    assert not len(bench.grammar_manager) and len(bench.processes) == 1
    assert bench.failed() == {"too_slow": 1}


def test_grammars_that_others_hang_a_process_with_cost_a_choice_nothing(bench: Bench) -> None:
    bench.follow("good")
    bench.answer(allowed(0))
    for number in range(1, MOST_LIVES + 2):
        bench.follow(f"bad {number}")
        bench.answer(Began(choice=number))
        bench.clock.now += COMPILE_SECONDS + 0.1
        assert bench.answer() == [(f"bad {number}", "invalid")]
        assert bench.answer(allowed(0)) == []
    assert len(bench.grammar_manager) == 1


def test_a_token_drawn_while_a_new_process_opens_is_told_afterwards(bench: Bench) -> None:
    good = bench.follow("good")
    bench.answer(allowed(0))
    bench.follow("bad")
    bench.answer(Began(choice=1))
    bench.process.ended = True
    bench.answer()
    bench.draw(good, 4)
    assert [type(message) for message in bench.process.heard] == [Open]
    bench.answer(allowed(0))
    assert bench.process.heard[1:] == [Advance(drawn=[(0, [4])])] and good.sequences[0].lacks_mask
    bench.answer(allowed(0))
    assert not good.sequences[0].lacks_mask


@pytest.mark.parametrize("end", [lambda bench: setattr(bench.process, "ended", True), lambda bench: _pass(bench)])
def test_a_process_that_ends_again_and_again_is_given_up(bench: Bench, end: Callable[[Bench], None]) -> None:
    bench.follow()
    for _ in range(MOST_LIVES - 1):
        end(bench)
        assert bench.answer() == []
    end(bench)
    assert bench.answer() == [("a", "internal")] and not len(bench.grammar_manager)
    assert bench.failed() == {"lost": 1}


def _pass(bench: Bench) -> None:
    bench.clock.now += SILENT_SECONDS + 1


def test_tenants_take_turns_in_having_grammars_compiled() -> None:
    orders = Orders()
    for choice, (tenant, before) in enumerate(
        [("a", False)] * 3 + [("b", False), ("a", True), ("c", True), ("b", False)]
    ):
        orders.put(Open(choice=choice, kind="regex", text="a", tenant=tenant, compiled_before=before))
    taken = [orders.get() for _ in range(7)]
    assert [(order.tenant, order.choice) for order in taken] == [
        *(("a", 4), ("c", 5)),
        *(("a", 0), ("b", 3), ("a", 1), ("b", 6), ("a", 2)),
    ]
