"""Sentence about a person -> JSON record."""

import json
from random import Random

from ..words import COLORS, JOBS, NUMBERS, THINGS, article, city, person

ITEMS = [thing for thing in THINGS if not thing.endswith(("x", "ch", "fe"))]
"""Things whose plural is the word and an s."""

FORMS = (
    "{name} is {a} {job} from {city} and bought {count} {color} {thing}s for {price} euros.",
    "Yesterday {name}, {a} {job} in {city}, ordered {count} {color} {thing}s at {price} euros.",
    "We sold {count} {color} {thing}s to {name}, who works as {a} {job} in {city}, and got {price} euros.",
    "{a} {job} called {name} paid {price} euros for {count} {color} {thing}s in {city}.",
    "For {price} euros, {name} took {count} {color} {thing}s home to {city}. {name} is {a} {job}.",
)


def example(rng: Random) -> tuple[str, str]:
    record: dict[str, str | int] = {
        "name": person(rng),
        "job": rng.choice(JOBS),
        "city": city(rng),
        "item": f"{rng.choice(COLORS)} {rng.choice(ITEMS)}",
        "count": rng.choice(NUMBERS),
        "price": rng.choice(NUMBERS),
    }
    return _sentence(rng, record), json.dumps(record)


def record_text(rng: Random) -> str:
    """A record alone: the base reads such text, but never beside the sentence."""
    return example(rng)[1]


def _sentence(rng: Random, record: dict[str, str | int]) -> str:
    color, thing = str(record["item"]).split()
    words = {key: record[key] for key in ("name", "job", "city", "count", "price")}
    sentence = rng.choice(FORMS).format(**words, color=color, thing=thing, a=article(str(record["job"])))
    return sentence[0].upper() + sentence[1:]
