"""Which running sequence gives way, when blocks run out or when somebody has waited for a place too long."""

from collections import Counter
from collections.abc import Sequence as Items

from .sequence import Sequence


def choose_victim(running: Items[Sequence]) -> Sequence:
    """The share that holds most gives way, on each level: the tenant, its least important priority, group, request.

    Among equals, and inside a request, the one that was admitted last. `running`: not empty, most senior first.
    """
    candidates = list(reversed(running))
    for level in range(len(candidates[0].request.shares)):
        counts = Counter(sequence.request.shares[level] for sequence in candidates)
        heaviest = max(counts, key=lambda share: (share.priority, counts[share]))
        candidates = [sequence for sequence in candidates if sequence.request.shares[level] is heaviest]
    return candidates[0]


def overfull_share(running: Items[Sequence], waiting: Sequence) -> Items[Sequence]:
    """The sequences of one share that holds more than half of the places where its way and that of `waiting` part.

    Empty where there is none: then `waiting` has its part, or gets it as sequences end. A more important priority gives
    nothing to a less important one.
    """
    for level, own in enumerate(waiting.request.shares):
        counts = Counter(sequence.request.shares[level] for sequence in running)
        if not counts:
            return ()
        heaviest, places = counts.most_common(1)[0]
        overfull = 2 * places > len(running) and places >= counts[own] + 2
        if heaviest is not own and overfull and heaviest.priority >= own.priority:
            return [sequence for sequence in running if sequence.request.shares[level] is heaviest]
        running = [sequence for sequence in running if sequence.request.shares[level] is own]
    return ()
