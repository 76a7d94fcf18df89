"""Times of several functions in one process, taken in turn so that a busy machine slows all of them alike."""

import time
from collections.abc import Callable


def best_of_each(functions: dict[str, Callable[[int], object]], rounds: int) -> dict[str, float]:
    """Seconds of the fastest call of each; every function gets the number of the round."""
    best = dict.fromkeys(functions, float("inf"))
    for index in range(rounds):
        for name, function in functions.items():
            begin = time.perf_counter()
            function(index)
            best[name] = min(best[name], time.perf_counter() - begin)
    return best
