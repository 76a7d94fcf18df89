"""BadWords: token sequences that a choice must not put out. Torch-free, so that the scheduler can hold it."""

from collections.abc import Sequence


class BadWords:
    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        """None of them is empty."""
        self._sequences = [(tuple(ids[:-1]), ids[-1]) for ids in sequences]

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def next_tokens(self, output: Sequence[int]) -> tuple[int, ...]:
        """Tokens that would complete one of them after `output`."""
        return tuple(last for first, last in self._sequences if _ends_with(output, first))


def _ends_with(output: Sequence[int], ids: tuple[int, ...]) -> bool:
    return not ids or tuple(output[-len(ids) :]) == ids
