"""What masks of constrained choices cost a step: python -m benchmarks.structured [MODEL]

Times a batch of choices through the grammar process, as the engine asks it, for the tokenizer of a model (the demo's)
and for a made one of 150,000 tokens. Each choice draws any allowed token.
"""

import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Final

import numpy as np
import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from loraplex.engine.constraints.messages import Advance, Allowed, Open
from loraplex.engine.constraints.process import GrammarProcess

BATCH: Final = 16
STEPS: Final = 200
LARGE: Final = 150_000
SCHEMA: Final = (
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 400}, "age": {"type": "integer"}, '
    '"tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}}}, "required": ["name", "age", "tags"]}'
)


def make_tokenizer(folder: Path, tokens: int) -> Path:
    """Random words of printable characters, the same in every run."""
    choose, letters = random.Random(7), [chr(code) for code in range(33, 127)]
    vocabulary = {character: index for index, character in enumerate(sorted(ByteLevel.alphabet()))}
    while len(vocabulary) < tokens:
        word = "".join(choose.choice(letters) for _ in range(choose.randint(2, 9)))
        vocabulary.setdefault(choose.choice(["", "Ġ"]) + word, len(vocabulary))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class Bench:
    def __init__(self, folder: Path) -> None:
        self._process, self._choose = GrammarProcess(folder), np.random.default_rng(0)
        self.masks: dict[int, bytes] = {}

    def open(self) -> float:
        """Seconds until all choices have their first mask."""
        begun = time.perf_counter()
        for choice in range(BATCH):
            self._process.send(Open(choice=choice, kind="json", text=SCHEMA))
        self._collect(BATCH)
        return time.perf_counter() - begun

    def step(self) -> float:
        """Seconds until every choice that goes on has its next mask."""
        drawn = [(choice, [token]) for choice in self.masks if (token := self._draw(choice)) is not None]
        self.masks = {}
        begun = time.perf_counter()
        self._process.send(Advance(drawn=drawn))
        self._collect(len(drawn))
        return time.perf_counter() - begun

    def close(self) -> None:
        self._process.kill()

    def _draw(self, choice: int) -> int | None:
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(self.masks[choice], np.uint8), bitorder="little"))
        return int(self._choose.choice(allowed)) if len(allowed) else None

    def _collect(self, count: int) -> None:
        while count:
            for message in self._process.receive(60.0):
                if isinstance(message, Allowed):
                    self.masks[message.choice] = message.tokens
                    count -= 1


def measure(name: str, folder: Path) -> None:
    bench = Bench(folder)
    try:
        first = bench.open()
        steps = list[float]()
        while len(steps) < STEPS and len(bench.masks) == BATCH:
            steps.append(bench.step())
    finally:
        bench.close()
    print(
        f"{name}: first masks after {first:.2f} s; {len(steps)} steps of {BATCH}: mean {mean(steps) * 1e3:.2f} ms, "
        f"median {median(steps) * 1e3:.2f} ms, 99 % {np.quantile(steps, 0.99) * 1e3:.2f} ms; "
        f"{mean(steps) / BATCH * 1e6:.0f} us a token"
    )


def main() -> None:
    measure("model", Path(sys.argv[1] if len(sys.argv) > 1 else "examples/demo/model"))
    with tempfile.TemporaryDirectory() as folder:
        measure(f"{LARGE:,} tokens", make_tokenizer(Path(folder), LARGE))


if __name__ == "__main__":
    main()
