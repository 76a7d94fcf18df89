import random
from types import ModuleType

import numpy as np
import pytest

from loraplex.engine.kernels import token_layout as compiled
from loraplex.engine.runner import token_layout


@pytest.mark.parametrize("module", [compiled, token_layout])
@pytest.mark.parametrize("seed", range(5))
def test_every_token_stands_where_its_sequence_says(seed: int, module: ModuleType) -> None:
    source, block_size = random.Random(seed), 16
    counts = [source.choice([1, 1, 1, 5, 40]) for _ in range(source.randint(1, 9))]
    starts = [source.randrange(100) for _ in counts]
    tables = [[source.randrange(1, 1 << 27) for _ in range(9)] for _ in counts]
    expected = [
        (sequence, position, tables[sequence][position // block_size] * block_size + position % block_size)
        for sequence, (count, start) in enumerate(zip(counts, starts, strict=True))
        for position in range(start, start + count)
    ]
    *tokens, query_starts, context_lengths = module.lay_out(
        np.array(counts), np.array(starts), np.array(tables, np.int32), block_size
    )
    assert list(zip(*(each.tolist() for each in tokens), strict=True)) == expected
    assert query_starts.tolist() == [sum(counts[:end]) for end in range(len(counts) + 1)]
    assert context_lengths.tolist() == [start + count for start, count in zip(starts, counts, strict=True)]
    assert (query_starts.dtype, context_lengths.dtype) == (np.int32, np.int32)
