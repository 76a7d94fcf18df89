"""Plain English for the base: little stories, descriptions, and text of the kinds the adapters will write."""

from collections.abc import Callable
from random import Random

from .tasks import pirate, records, sentiment, spanish, sql
from .words import (
    ADJECTIVES,
    ANIMALS,
    COLORS,
    DAYS,
    JOBS,
    MOTIONS,
    NUMBERS,
    PLACES,
    THINGS,
    TIMES,
    VERBS,
    article,
    city,
    person,
)

BEGINNINGS = (
    "Once upon a time there was {an_adjective} {animal} called {name}.",
    "{name} was {a_job} who lived in {city}.",
    "On {day}, {name} and {friend} {went} to the {place}.",
    "In the {place} of {city} lived {an_adjective} {animal}. Its name was {name}.",
)
MIDDLES = (
    "{name} {took} the {color} {thing} and {went} to the {place}.",
    "There was {an_adjective} {animal} in the {place}, and it {took} the {thing}.",
    '{friend} said: "My {thing} is {adjective}!"',
    '"Where is the {thing}?" asked {friend}. "It is in the {place}," said {name}.',
    "{friend} wanted to {take} the {thing}, but {name} did not.",
    "{time}, {friend} gave {name} {count} {color} coins.",
    "{name} was very {adjective} because the {animal} {took} the {thing}.",
)
ENDINGS = (
    "In the end, {name} and {friend} were happy.",
    "Then {name} {went} home to {city}.",
    "{name} kept the {thing}, and they were friends from that day.",
    "That is the story of {name} and the {color} {thing}.",
)


def story(rng: Random) -> str:
    words = _words(rng)
    middles = rng.sample(MIDDLES, rng.randint(1, 3))
    return " ".join(_fill(form, words) for form in (rng.choice(BEGINNINGS), *middles, rng.choice(ENDINGS)))


def sentence(rng: Random) -> str:
    """One sentence out of a story."""
    return _fill(rng.choice(MIDDLES[:2] + MIDDLES[-3:] + BEGINNINGS[:3]), _words(rng))


def notes(rng: Random) -> str:
    """A few lines of one kind, without what they answer: queries, records, pirates' talk, Spanish, or reviews."""
    kinds: tuple[Callable[[Random], str], ...]
    kinds = (sql.query, records.record_text, pirate.saying, spanish.sentence, sentiment.review)
    kind = rng.choice(kinds)
    return "\n".join(kind(rng) for _ in range(rng.randint(1, 4)))


def _words(rng: Random) -> dict[str, str]:
    adjective, job, verb, motion = (
        rng.choice(ADJECTIVES),
        rng.choice(JOBS),
        rng.choice(sorted(VERBS)),
        rng.choice(sorted(MOTIONS)),
    )
    words = {
        "name": person(rng),
        "friend": person(rng),
        "city": city(rng),
        "adjective": adjective,
        "count": str(rng.choice(NUMBERS)),
    }
    words |= {"an_adjective": f"{article(adjective)} {adjective}", "a_job": f"{article(job)} {job}"}
    words |= {
        "take": verb,
        "took": VERBS[verb],
        "went": MOTIONS[motion],
        "time": rng.choice(TIMES),
        "day": rng.choice(DAYS),
    }
    lists = {"animal": ANIMALS, "color": COLORS, "thing": THINGS, "place": PLACES}
    return words | {key: rng.choice(choices) for key, choices in lists.items()}


def _fill(form: str, words: dict[str, str]) -> str:
    text = form.format(**words)
    return text[0].upper() + text[1:]
