"""Requests that come whether the engine has time for them or not, and how long each waits for its first token."""

import random
import time
from collections import deque
from itertools import accumulate
from typing import Final

from .errors import WrongResult
from .serving import Served, Stream, random_tokens
from .shapes import Arrivals

SHARE: Final = 0.95
"""Of the requests with short prompts, that wait no longer than what a row says."""


def wait_of_short(served: Served, arrivals: Arrivals, step: float) -> float:
    """Seconds from a short request's moment to its first token, which SHARE of them stay below. step: seconds of a
    decode step. Raises WrongResult where an answer has another length than was asked for."""
    source, vocabulary = random.Random(0), served.engine.info.vocab_size
    gaps = [source.expovariate(1 / (arrivals.apart * step)) for _ in range(arrivals.requests)]
    lengths = [arrivals.long if number % arrivals.one_in == 1 else arrivals.short for number in range(len(gaps))]
    prompts = [random_tokens(source, length, vocabulary) for length in lengths]
    waiting, streams = deque(zip(accumulate(gaps), prompts, strict=True)), list[tuple[float, Stream]]()
    began = time.perf_counter()
    while waiting or served.engine.core.has_work():
        while waiting and waiting[0][0] <= time.perf_counter() - began:
            moment, prompt = waiting.popleft()
            streams.append((began + moment, served.add(prompt, arrivals.answer)))
        if served.engine.core.has_work():
            served.step()
    if any(len(stream.tokens) != arrivals.answer or stream.first is None for _, stream in streams):
        raise WrongResult("an answer has another length than was asked for")
    served.clear()
    waits = [stream.first - due for due, stream in streams if stream.first and len(stream.prompt) == arrivals.short]
    return sorted(waits)[int(SHARE * (len(waits) - 1))]
