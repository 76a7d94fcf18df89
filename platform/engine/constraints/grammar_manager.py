"""GrammarManager: the engine's constrained choices, and the process that says what each may draw next.

The engine's loop never waits for long: a choice whose answer is late sits a step out, and the others go on. When the
process ends, or is ended because it takes too long, a new one begins where the choices are.
"""

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ..field_types import ParameterError
from ..protocol import AddedToken, GenerateRequest
from ..scheduler.plan import Scheduled
from ..scheduler.sequence import Request, Sequence, Status
from ..structured_outputs import SOURCES
from . import counts
from .counts import Counts
from .limits import COMPILE_SECONDS, FATAL, SILENT_SECONDS, TOO_LONG, WAIT_SECONDS
from .messages import Advance, Allowed, Began, Close, FromGrammars, Open, Refused, ToGrammars
from .process import GrammarProcess

MOST_LIVES: Final = 3
"""Processes that may end under a choice without being blamed on it."""
MOST_BLAMED: Final = 256
LOST: Final = "the process that applies structured output ended again and again; try again later"
NOT_FOLLOWED: Final = "the answer cannot be continued within the limits of structured output: {reason}"

FAILED_BY: Final = {TOO_LONG: counts.TOO_SLOW, FATAL: counts.CRASHED, LOST: counts.LOST}
Key = tuple[str, str]


class Process(Protocol):
    """`GrammarProcess` is one."""

    ended: bool

    def send(self, message: ToGrammars) -> None: ...
    def receive(self, seconds: float) -> list[FromGrammars]: ...
    def kill(self) -> None: ...


@dataclass(slots=True)
class GrammarFollower:
    """A choice and where its answer is."""

    sequence: Sequence
    key: Key
    added_tokens: list[AddedToken]
    asked_at: float
    opened: bool = False
    told: int = 0
    """Tokens of its output that the process knows."""
    lives: int = MOST_LIVES
    compiled_before: bool = False
    """By any process."""
    late: bool = False
    """Its mask did not come within the wait of a step."""

    @property
    def tenant(self) -> str:
        return self.sequence.request.message.tenant

    @property
    def field(self) -> str:
        constraint = self.sequence.request.message.params.structured_outputs
        assert constraint is not None
        return constraint.field

    @property
    def waits(self) -> bool:
        return self.sequence.lacks_mask and self.sequence.status is not Status.FINISHED


@dataclass(frozen=True, slots=True)
class Compilation:
    """Of a choice's grammar; the choice may have ended meanwhile. `key`: None where it had before this was heard."""

    choice: int
    key: Key | None
    began_at: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that cannot go on. `kind` and `param` as of RequestFailed; `why` as of `counts`."""

    request: Request
    kind: str
    message: str
    why: str
    param: str | None = None


class GrammarManager:
    """`follow` takes new requests. Once a step, `advance` tells of drawn tokens and `collect` fetches masks, one bit a
    token. A choice without its mask is not scheduled to draw.

    A constraint that ended the process, or blocked it, is refused from then on.
    """

    def __init__(
        self, start: Callable[[], Process], clock: Callable[[], float] = time.monotonic, wait: float = WAIT_SECONDS
    ) -> None:
        self._start, self._clock, self._wait = start, clock, wait
        self._process: Process | None = None
        self._live: dict[int, GrammarFollower] = {}
        self._numbers = itertools.count()
        self._heard_at = 0.0
        self._compiling: Compilation | None = None
        self._blamed: OrderedDict[Key, str] = OrderedDict()
        """Constraints that ended a process, and why: none of them does so twice."""
        self._turns: dict[str, float] = {}
        """tenant -> when a grammar of it began to be compiled last."""
        self.counts = Counts(SOURCES)

    def __len__(self) -> int:
        return len(self._live)

    def check(self, message: GenerateRequest) -> None:
        """Raise ParameterError for a constraint that is known to be no good."""
        constraint = message.params.structured_outputs
        if constraint is None:
            return
        reason = self._blamed.get(constraint.source())
        if reason is not None:
            self.counts.requests[constraint.source()[0]] += 1
            self.counts.failed[FAILED_BY[reason]] += 1
            raise ParameterError(constraint.field, _named(constraint.field, reason))

    def follow(self, request: Request) -> None:
        """Nothing, unless it is constrained."""
        constraint = request.message.params.structured_outputs
        if constraint is None:
            return
        key, now = constraint.source(), self._clock()
        self.counts.requests[key[0]] += 1
        for sequence in request.sequences:
            number = next(self._numbers)
            self._live[number] = GrammarFollower(sequence, key, request.message.added_tokens, now)
            self._open(number)

    def advance(self, items: Iterable[Scheduled]) -> None:
        """These have been committed."""
        if not self._live:
            return
        drew = {item.sequence for item in items if item.sample}
        self._tell([n for n, follower in self._live.items() if follower.sequence in drew and follower.opened])

    def collect(self) -> list[Failure]:
        """Take the answers that are there, or come within WAIT_SECONDS of their question."""
        if not self._live:
            return []
        begun, asked = self._clock(), self._asked()
        failures = self._collect()
        if asked:
            self.counts.mask_seconds.observe(self._clock() - begun)
        for follower in self._asked():
            follower.late = True
            self.counts.late_masks += 1
        for failure in {failure.request.id: failure for failure in failures}.values():
            self.counts.failed[failure.why] += 1
        return failures

    def _collect(self) -> list[Failure]:
        self.drop_ended()
        failures: list[Failure] = []
        while self._process is not None and (self._compiles_too_long() or self._waiting()):
            latest = max((f.asked_at for f in self._waiting() if f.opened), default=0.0)
            patience = max(0.0, latest + self._wait - self._clock())
            messages = self._process.receive(patience)
            for message in messages:
                failures += self._take(message)
            if self._process.ended:
                failures += self._begin_anew(FATAL)
            elif not messages:
                break
        return failures + self._end_slow()

    def drop_ended(self) -> None:
        """Forget choices that have ended, however they did, and end what is compiled too long for nobody."""
        ended = [n for n, follower in self._live.items() if follower.sequence.status is Status.FINISHED]
        if ended:
            self._send(Close(choices=ended))
            for number in ended:
                del self._live[number]
        if not self._live and self._process is not None and self._compiles_too_long():
            for message in self._process.receive(0.0):
                self._take(message)
            self._end_slow()

    def close(self) -> None:
        """End the process. Twice is no error."""
        self._compiling = None
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _take(self, message: FromGrammars) -> list[Failure]:
        follower = self._live.get(message.choice)
        now = self._heard_at = self._clock()
        if isinstance(message, Allowed | Refused) and message.compile_seconds is not None:
            self.counts.compile_seconds.observe(message.compile_seconds)
        if isinstance(message, Began):
            if follower is not None:
                self._turns[follower.tenant] = now
            self._compiling = Compilation(message.choice, None if follower is None else follower.key, now)
        elif self._compiling is not None and self._compiling.choice == message.choice:
            self._compiling = None
        if follower is None:
            return []
        match message:
            case Allowed():
                follower.opened = follower.compiled_before = True
                row = follower.sequence.row
                if follower.told < len(row.output_token_ids):
                    self._tell([message.choice])
                elif row.mask is not None:
                    row.mask.learn(message.tokens, message.complete, row.position)
            case Refused():
                del self._live[message.choice]
                return [self._refused(follower, message.reason)]
        return []

    def _refused(self, follower: GrammarFollower, reason: str) -> Failure:
        begun = follower.compiled_before
        words = NOT_FOLLOWED.format(reason=reason) if begun else _named(follower.field, reason)
        why = counts.CUT_SHORT if begun else counts.NOT_COMPILED
        return Failure(follower.sequence.request, "invalid", words, why, follower.field)

    def _asked(self) -> list[GrammarFollower]:
        """Those whose mask is worth a wait."""
        return [follower for follower in self._waiting() if follower.opened and not follower.late]

    def _waiting(self) -> list[GrammarFollower]:
        return [follower for follower in self._live.values() if follower.waits]

    def _compiles_too_long(self) -> bool:
        return self._compiling is not None and self._clock() - self._compiling.began_at > COMPILE_SECONDS

    def _end_slow(self) -> list[Failure]:
        """What hangs is ended with its process, also where nobody waits for it any more: it keeps all others back."""
        if self._compiles_too_long():
            return self._begin_anew(TOO_LONG)
        waiting = self._waiting()
        if waiting and self._clock() - max(self._heard_at, max(f.asked_at for f in waiting)) > SILENT_SECONDS:
            return self._begin_anew(LOST)
        return []

    def _begin_anew(self, reason: str) -> list[Failure]:
        """Another process, which hears of all choices that are not to blame."""
        compiling = self._compiling
        self.close()
        self.counts.restarts += 1
        if compiling is not None:
            self.counts.compile_seconds.observe(self._clock() - compiling.began_at)
        if compiling is not None and compiling.key is not None:
            self._blame(compiling.key, reason)
        failures: list[Failure] = []
        for number, follower in self._by_turns():
            request = follower.sequence.request
            follower.lives -= compiling is None
            if compiling is not None and follower.key == compiling.key and not follower.opened:
                words = _named(follower.field, reason)
                failures.append(Failure(request, "invalid", words, FAILED_BY[reason], follower.field))
            elif follower.lives == 0:
                failures.append(Failure(request, "internal", LOST, counts.LOST))
            else:
                follower.asked_at = self._clock()
                self._open(number)
                continue
            del self._live[number]
        return failures

    def _by_turns(self) -> list[tuple[int, GrammarFollower]]:
        """The tenant whose last turn is longest ago comes first, lest those who end processes are always before it."""
        tenants = {follower.tenant for follower in self._live.values()}
        self._turns = {tenant: at for tenant, at in self._turns.items() if tenant in tenants}
        return sorted(self._live.items(), key=lambda item: self._turns.get(item[1].tenant, 0.0))

    def _blame(self, key: Key, reason: str) -> None:
        self._blamed[key] = reason
        if len(self._blamed) > MOST_BLAMED:
            self._blamed.popitem(last=False)

    def _tell(self, numbers: list[int]) -> None:
        """Ask what these may draw next."""
        drawn = []
        for number in numbers:
            follower = self._live[number]
            if not follower.waits:
                continue
            output = follower.sequence.output_token_ids
            drawn.append((number, output[follower.told :]))
            follower.told, follower.asked_at, follower.late = len(output), self._clock(), False
        if drawn:
            self._send(Advance(drawn=drawn))

    def _open(self, number: int) -> None:
        follower = self._live[number]
        kind, text = follower.key
        tokens = list(follower.sequence.output_token_ids)
        follower.told, follower.opened = len(tokens), False
        self._send(
            Open(
                choice=number,
                kind=kind,
                text=text,
                added_tokens=follower.added_tokens,
                tokens=tokens,
                tenant=follower.tenant,
                compiled_before=follower.compiled_before,
            )
        )

    def _send(self, message: ToGrammars) -> None:
        if self._process is None:
            self._process, self._heard_at = self._start(), self._clock()
        self._process.send(message)


def make_grammar_manager(folder: str) -> GrammarManager:
    """For the checkpoint in `folder`. The process starts with the first constrained request."""
    return GrammarManager(lambda: GrammarProcess(Path(folder)))


def _named(field: str, reason: str) -> str:
    return f"{field} cannot be used: {reason}"
