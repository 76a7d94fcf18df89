"""The usage ledger's writing side: requests are counted in memory and booked in small batches.

A request is open from its admission to its end. `flush`, which runs twice a second, writes in one transaction the
requests that are still open, the counts of those that have ended, and the number of the batch. So a request that has
ended is durable within a second; one that was written as open, and whose process dies before its end is booked, is
settled by the next start as `unknown`, with the tokens that were reserved for it; one that began less than a flush
before the death leaves nothing. A batch whose outcome is not known (the database went away) is written again under its
number and counts once.
"""

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from ..database.database import Database
from ..database.tables import OpenRequest, Tenant, UsageDay, UsageRow, UsageWriter, utc_now
from .sums import UsageCounts
from .writers import WriterLock, is_gone, sweep_locks

COUNTS: Final = UsageCounts.__struct_fields__
KEY: Final = ("tenant_id", "day", "hour", "actor", "adapter_digest", "adapter_name")
DAY_KEY: Final = tuple(name for name in KEY if name != "hour")
BEAT: Final = timedelta(seconds=10)
"""How often a process that has nothing to write says that it lives."""


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a request is booked to. `adapter_digest` is empty for the base alone."""

    tenant: str
    actor: str
    adapter_digest: str
    adapter_name: str


@dataclass(frozen=True, slots=True)
class AccountHour:
    """An account in one hour of UTC."""

    account: Account
    day: str
    hour: int


@dataclass(slots=True)
class OpenEntry:
    """One open request; `settle` it once. `written`: its open row is or will be in the database."""

    number: int
    place: AccountHour
    reserved_tokens: int
    written: bool = False


class Books(Protocol):
    """Where a request is booked from its admission to its end."""

    def open(self, account: Account, reserved_tokens: int) -> OpenEntry:
        """A request begins; at most `reserved_tokens` of prompt and output are expected."""

    def settle(
        self, entry: OpenEntry, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int, error: bool
    ) -> None:
        """It has ended, well or not. Called once."""


@dataclass(slots=True)
class Batch:
    number: int
    opened: list[OpenEntry] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    counts: dict[AccountHour, Counter[str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.opened or self.closed or self.counts)


class Ledger:
    """`open` and `settle` touch memory alone and may be called from any thread; all else blocks.

    `folder` is where the processes of this machine show that they live.
    """

    def __init__(self, database: Database, folder: Path, clock: Callable[[], datetime] = utc_now) -> None:
        self._database, self._folder, self._clock = database, folder, clock
        self.writer = uuid.uuid4().hex
        self._writer_lock = WriterLock(folder, self.writer)
        self._memory, self._flushing = threading.Lock(), threading.Lock()
        self._numbers = 0
        self._open: dict[int, OpenEntry] = {}
        self._next = Batch(1)
        self._unbooked: Batch | None = None
        """Taken out of memory and not known to be booked."""
        self._beat = self._clock() - BEAT

    def open(self, account: Account, reserved_tokens: int) -> OpenEntry:
        """A request begins; at most `reserved_tokens` of prompt and output are expected."""
        with self._memory:
            self._numbers += 1
            entry = OpenEntry(self._numbers, self._place(account), reserved_tokens)
            self._open[entry.number] = entry
        return entry

    def settle(
        self, entry: OpenEntry, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int, error: bool
    ) -> None:
        """It has ended, well or not; booked to the hour of its end."""
        with self._memory:
            del self._open[entry.number]
            if entry.written:
                self._next.closed.append(entry.number)
            counts = self._next.counts.setdefault(self._place(entry.place.account), Counter())
            counts["requests"] += 1
            counts["errors"] += error
            counts["prompt_tokens"] += prompt_tokens
            counts["cached_tokens"] += cached_tokens
            counts["completion_tokens"] += completion_tokens

    def flush(self) -> None:
        """Write what has happened since the last time. Raises what the database raises; nothing is lost by that."""
        with self._flushing:
            batch = self._unbooked or self._taken()
            if batch.is_empty and self._clock() - self._beat < BEAT:
                return
            self._unbooked = batch
            with self._database.write() as session:
                if _claim(session, self.writer, batch.number, self._clock()):
                    self._write(session, batch)
            self._unbooked, self._beat = None, self._clock()

    def settle_gone(self) -> int:
        """Book the open requests of processes that are gone as unknown; how many there were."""
        with self._database.read() as session:
            writers = session.scalars(select(UsageWriter)).all()
        sweep_locks(self._folder, [self.writer, *(one.id for one in writers)])
        gone = [one.id for one in writers if one.id != self.writer and is_gone(self._folder, one, self._clock())]
        return sum(self._settle_writer(writer) for writer in gone)

    def unbooked_tokens(self, day: str) -> Mapping[tuple[str, str], int]:
        """(tenant, actor) -> tokens of the day that have been used and are in no row yet."""
        with self._memory:
            places = [*self._next.counts.items(), *(self._unbooked.counts.items() if self._unbooked else ())]
            tokens: Counter[tuple[str, str]] = Counter()
            for place, counts in places:
                if place.day == day:
                    used = counts["prompt_tokens"] + counts["completion_tokens"]
                    tokens[place.account.tenant, place.account.actor] += used
        return tokens

    def close(self) -> None:
        """Write the rest and leave. What is still open is settled as unknown, by whoever starts next."""
        finished = False
        try:
            self.flush()
            self.flush()  # the first may have written an older batch again
            if not self._open:
                with self._database.write() as session:
                    session.execute(delete(UsageWriter).where(UsageWriter.id == self.writer))
                finished = True
        finally:
            self._writer_lock.release(remove=finished)

    def _place(self, account: Account) -> AccountHour:
        now = self._clock()
        return AccountHour(account, now.date().isoformat(), now.hour)

    def _taken(self) -> Batch:
        """What is in memory. Requests that began and ended since the last time never become open rows."""
        with self._memory:
            batch, self._next = self._next, Batch(self._next.number + 1)
            batch.opened = [entry for entry in self._open.values() if not entry.written]
            for entry in batch.opened:
                entry.written = True
        return batch

    def _write(self, session: Session, batch: Batch) -> None:
        tenants = {name: id for id, name in session.execute(select(Tenant.id, Tenant.name))}
        if batch.opened:
            rows = [
                {
                    "writer": self.writer,
                    "number": entry.number,
                    "reserved_tokens": entry.reserved_tokens,
                    **_key(entry.place, tenants),
                }
                for entry in batch.opened
            ]
            session.execute(insert(OpenRequest), rows)
        if batch.closed:
            closed = delete(OpenRequest).where(
                OpenRequest.writer == self.writer, OpenRequest.number == bindparam("closed")
            )
            session.connection().execute(closed, [{"closed": number} for number in batch.closed])
        _book(session, [{**_key(place, tenants), **counts} for place, counts in batch.counts.items()])

    def _settle_writer(self, writer: str) -> int:
        with self._database.write() as session:
            found = session.execute(delete(UsageWriter).where(UsageWriter.id == writer))
            if not found.rowcount:  # type: ignore[attr-defined]
                return 0  # another process was faster
            rows = session.scalars(select(OpenRequest).where(OpenRequest.writer == writer)).all()
            for row in rows:
                key = {name: getattr(row, name) for name in KEY}
                _book(session, [{**key, "requests": 1, "unknown": 1, "unknown_tokens": row.reserved_tokens}])
            session.execute(delete(OpenRequest).where(OpenRequest.writer == writer))
        return len(rows)


def book(session: Session, counts: Mapping[AccountHour, Mapping[str, int]]) -> None:
    """Add COUNTS in the caller's transaction, for requests that keep their own books of what is booked."""
    tenants = {name: id for id, name in session.execute(select(Tenant.id, Tenant.name))}
    _book(session, [{**_key(place, tenants), **sums} for place, sums in counts.items()])


def _claim(session: Session, writer: str, batch: int, now: datetime) -> bool:
    """Whether the batch is still to be written."""
    newer = update(UsageWriter).where(UsageWriter.id == writer, UsageWriter.batch < batch)
    if session.execute(newer.values(batch=batch, beat_at=now)).rowcount:  # type: ignore[attr-defined]
        return True
    if session.get(UsageWriter, writer) is not None:
        return False
    session.execute(insert(UsageWriter).values(id=writer, batch=batch, beat_at=now))
    return True


def _key(place: AccountHour, tenants: Mapping[str, int]) -> dict[str, Any]:
    account = place.account
    return {
        "tenant_id": tenants[account.tenant],
        "day": place.day,
        "hour": place.hour,
        "actor": account.actor,
        "adapter_digest": account.adapter_digest,
        "adapter_name": account.adapter_name,
    }


def _book(session: Session, rows: Iterable[dict[str, Any]]) -> None:
    """Add counts to the rows of their places and days, in one order, so that no process waits for another in a ring."""
    ordered = sorted(
        (dict.fromkeys(COUNTS, 0) | row for row in rows), key=lambda row: tuple(str(row[name]) for name in KEY)
    )
    if not ordered:
        return
    _add(session, UsageRow, KEY, ordered)
    _add(session, UsageDay, DAY_KEY, [{name: row[name] for name in row if name != "hour"} for row in ordered])


def _add(session: Session, table: type[UsageRow | UsageDay], key: Sequence[str], rows: list[dict[str, Any]]) -> None:
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    new = dialect.insert(table)
    sums = {name: getattr(table, name) + new.excluded[name] for name in COUNTS}
    session.execute(new.on_conflict_do_update(index_elements=key, set_=sums), rows)
