"""The journal: what was appended is there, what is half written is cut off, one process has it."""

import multiprocessing
from pathlib import Path

import msgspec
import pytest

from loraplex.registry.batches.booking import Sums
from loraplex.registry.batches.journal import Journal, JournalBusy, Record, Used, encode
from loraplex.registry.usage.ledger import Account, AccountHour
from tests.fork_server import fork_server


def made(line: int, succeeded: bool = True, used: Used | None = None) -> Record:
    return Record(line, succeeded, used, msgspec.Raw(b'{"text":"\\n \xc3\xbc"}'))


def write(path: Path, *records: Record) -> None:
    with Journal(path) as journal:
        journal.recover()
        journal.append(b"".join(map(encode, records)))


def test_records_come_back(tmp_path: Path) -> None:
    write(tmp_path / "a", made(3), made(1))
    write(tmp_path / "a", made(2, succeeded=False))
    with Journal(tmp_path / "a") as journal:
        assert journal.recover() == {1, 2, 3}
        found = list(journal.records())
        assert [(one.line, one.succeeded) for one in found] == [(3, True), (1, True), (2, False)]
        assert msgspec.json.decode(found[0].result) == {"text": "\n ü"}


@pytest.mark.parametrize("lost", range(1, len(encode(made(2))) + 1))
def test_a_partial_record_is_cut_off(tmp_path: Path, lost: int) -> None:
    """Wherever the process died, what is appended afterwards stands behind the last whole record."""
    path = tmp_path / "a"
    write(path, made(1), made(2))
    path.write_bytes(path.read_bytes()[:-lost])
    write(path, made(5))
    with Journal(path) as journal:
        assert journal.recover() == {1, 5}


def test_bytes_that_nobody_wrote_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, made(1))
    path.write_bytes(path.read_bytes() + b"\0" * 100 + b"\n" + encode(made(9)))
    with Journal(path) as journal:
        assert journal.recover() == {1}
    assert path.read_bytes() == encode(made(1))


def test_records_are_read_from_a_place_on(tmp_path: Path) -> None:
    with Journal(tmp_path / "a") as journal:
        journal.append(encode(made(1)))
        place = journal.size
        journal.append(encode(made(2)))
        assert [one.line for one in journal.records(place)] == [2]
        assert list(journal.records(journal.size)) == []


def hold(path: Path, held: "multiprocessing.synchronize.Event") -> None:
    with Journal(path):
        held.set()
        held.wait(0)
        multiprocessing.Event().wait(60)


def test_one_process_has_it_until_it_dies(tmp_path: Path) -> None:
    with fork_server() as context:
        held = context.Event()
        process = context.Process(target=hold, args=(tmp_path / "a", held))
        process.start()
        assert held.wait(30)
        with pytest.raises(JournalBusy):
            Journal(tmp_path / "a")
        process.kill()
        process.join()
    Journal(tmp_path / "a").close()


def test_sums_are_by_account_and_hour() -> None:
    one, two = (Used(digest, name, "2026-11-28", 7, 10, 4, 5, 2, failed) for digest, name, failed in USES)
    sums = Sums([made(1, used=one), made(2, used=one), made(3, succeeded=False, used=two), made(4, succeeded=False)])
    assert (sums.completed, sums.failed) == (2, 2)
    assert sums.tokens == {"prompt_tokens": 30, "cached_tokens": 12, "completion_tokens": 15, "reasoning_tokens": 6}
    places = sums.by_place("acme", "key:1")
    assert places == {
        AccountHour(Account("acme", "key:1", "d", "sql"), "2026-11-28", 7): {
            "requests": 2,
            "errors": 0,
            "prompt_tokens": 20,
            "cached_tokens": 8,
            "completion_tokens": 10,
        },
        AccountHour(Account("acme", "key:1", "", "demo"), "2026-11-28", 7): {
            "requests": 1,
            "errors": 1,
            "prompt_tokens": 10,
            "cached_tokens": 4,
            "completion_tokens": 5,
        },
    }


USES = (("d", "sql", False), ("", "demo", True))
