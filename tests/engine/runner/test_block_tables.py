"""Block tables kept between steps are those that would be made anew."""

import random

import numpy as np

from loraplex.engine.runner.block_tables import BlockTables
from loraplex.engine.runner.step_layout import block_tables
from loraplex.engine.scheduler.plan import Scheduled

from .test_runner import sequence


def test_kept_tables_say_what_new_ones_would() -> None:
    """Sequences grow, give their blocks back and begin again, end, come and change places."""
    choose, tables = random.Random(5), BlockTables(6, 40)
    live = [sequence([1], [choose.randrange(99)]) for _ in range(6)]
    for _ in range(500):
        for member in live:
            if len(member.blocks) < 40:
                member.blocks += [choose.randrange(99) for _ in range(choose.choice([0, 0, 0, 1, 3]))][
                    : 40 - len(member.blocks)
                ]
        match choose.randrange(6):
            case 0:
                live[choose.randrange(6)].blocks = [choose.randrange(99) for _ in range(choose.randint(1, 4))]
            case 1:
                live[choose.randrange(6)] = sequence([1], [choose.randrange(99)])
            case 2:
                choose.shuffle(live)
        scheduled = [Scheduled(member, 0, 1, True) for member in live[: choose.randint(1, 6)]]
        found, wanted = tables.of(scheduled), block_tables(scheduled)
        assert found.shape == wanted.shape
        for row, item in enumerate(scheduled):
            count = len(item.sequence.blocks)
            assert np.array_equal(found[row, :count], wanted[row, :count])
