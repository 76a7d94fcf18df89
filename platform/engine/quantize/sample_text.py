"""Text to calibrate on when the user gives none: prose, questions, code, records and numbers, the same every time."""

import random
from collections.abc import Iterator
from typing import Final

PEOPLE: Final = ("Anna", "the engineer", "Mr. Okafor", "our neighbour", "Lucía", "the committee", "Dr. Chen", "a child")
VERBS: Final = ("described", "repaired", "questioned", "measured", "forgot", "painted", "delivered", "compared")
THINGS: Final = (
    "the old bridge",
    "a small computer",
    "the annual report",
    "three wooden boxes",
    "the river's temperature",
    "an unusual melody",
    "the kitchen window",
    "a map of the coast",
)
REASONS: Final = (
    "because the weather had changed overnight",
    "although nobody had asked for it",
    "before the train to Hamburg left",
    "while the others were still discussing the price",
    "so that everyone could understand the result",
    "as it had been agreed in 1987",
)
FIELDS: Final = ("name", "city", "age", "price", "weight", "colour", "status", "created_at")
CITIES: Final = ("London", "São Paulo", "Nairobi", "Kyoto", "Montréal", "Warsaw")
TOPICS: Final = ("photosynthesis", "interest rates", "sorting algorithms", "the French Revolution", "vaccines", "tides")


def paragraphs(seed: int = 0) -> Iterator[str]:
    """Without end; the same for the same seed."""
    randomness = random.Random(seed)
    makers = (_prose, _prose, _question, _code, _record, _sums, _instructions)
    while True:
        yield randomness.choice(makers)(randomness)


def _prose(randomness: random.Random) -> str:
    return " ".join(_sentence(randomness) for _ in range(randomness.randint(3, 6)))


def _sentence(randomness: random.Random) -> str:
    person, verb, thing = randomness.choice(PEOPLE), randomness.choice(VERBS), randomness.choice(THINGS)
    ending = f" {randomness.choice(REASONS)}." if randomness.random() < 0.6 else "."
    return f"{person[0].upper()}{person[1:]} {verb} {thing}{ending}"


def _question(randomness: random.Random) -> str:
    topic, thing = randomness.choice(TOPICS), randomness.choice(THINGS)
    return (
        f"Question: What has {topic} to do with {thing}?\nAnswer: At first sight, very little. {_sentence(randomness)} "
        f"In the end it matters in {randomness.randint(2, 9)} ways."
    )


def _code(randomness: random.Random) -> str:
    field, other = randomness.sample(FIELDS, 2)
    limit = randomness.randint(2, 500)
    return (
        f"def select_{field}(rows, limit={limit}):\n"
        f'    """Rows whose {field} is set, ordered by {other}."""\n'
        f"    found = [row for row in rows if row.get({field!r}) is not None]\n"
        f"    return sorted(found, key=lambda row: row[{other!r}])[:limit]"
    )


def _record(randomness: random.Random) -> str:
    fields = randomness.sample(FIELDS, 3)
    values = (f'"{randomness.choice(CITIES)}"', str(randomness.randint(1, 9999)), f"{randomness.uniform(0, 99):.2f}")
    pairs = ", ".join(f'"{field}": {value}' for field, value in zip(fields, values, strict=True))
    where = f"SELECT {fields[0]} FROM items WHERE {fields[1]} > {values[1]} ORDER BY {fields[2]};"
    return f"{{{pairs}}}\n{where}"


def _sums(randomness: random.Random) -> str:
    first, second = randomness.randint(10, 9999), randomness.randint(10, 999)
    return f"{first} + {second} = {first + second}, and {first} * {second} = {first * second}."


def _instructions(randomness: random.Random) -> str:
    steps = [_sentence(randomness) for _ in range(randomness.randint(3, 5))]
    listed = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    return f"## How to understand {randomness.choice(TOPICS)}\n\n{listed}\n- {randomness.choice(CITIES)}"
