"""Blocks of a choice that ended while the next step computed it are its own until that step has ended: with what was
given back before, others say something else, so that comparing what is said (test_overlap.py) finds the mistake."""

from functools import cache

import pytest

from loraplex.engine.scheduler.request_table import RequestTable
from loraplex.engine.scheduler.sequence import Sequence

from .. import test_overlap as overlap

SEEDS = 200


def test_blocks_given_back_too_early_change_what_others_say(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = RequestTable._leave

    def leave_at_once(request_table: RequestTable, sequence: Sequence) -> None:
        leave(request_table, sequence)
        if sequence in request_table.leaving:
            request_table._empty(sequence)

    assert count_wrong(monkeypatch) == 0
    monkeypatch.setattr(RequestTable, "_leave", leave_at_once)
    assert count_wrong(monkeypatch) > 10


def count_wrong(monkeypatch: pytest.MonkeyPatch) -> int:
    """Schedules in which a choice says what it does not say alone; books and memory are not looked at."""
    monkeypatch.setattr(RequestTable, "check_integrity", lambda _: [])
    monkeypatch.setattr(overlap.Run, "check_end", lambda _: None)
    monkeypatch.setattr(overlap, "device", cache(overlap.device.__wrapped__))
    wrong = 0
    for seed in range(SEEDS):
        run = overlap.Run(overlap.Traffic(seed, overlap.Requests(seed)), 2)
        run.run()
        try:
            run.check_streams()
        except AssertionError as error:
            assert "differs from what it says alone" in str(error)
            wrong += 1
    return wrong
