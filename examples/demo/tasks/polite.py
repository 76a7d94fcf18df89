"""Blunt sentence -> the same, politely."""

from random import Random

from ..words import ADJECTIVES, ANIMALS, COLORS, THINGS, article, city, person

FORMS = {
    "Give me the {color} {thing}, {person}!": "{person}, could you please give me the {color} {thing}?",
    "{person}, bring the {thing} to {city}!": "{person}, would you be so kind as to bring the {thing} to {city}?",
    "I want {a} {adjective} {thing} from {city}.": "I would like {a} {adjective} {thing} from {city}, please.",
    "Where is the {color} {thing} of {person}?": (
        "Excuse me, could you tell me where the {color} {thing} of {person} is?"
    ),
    "Do not touch my {adjective} {animal}, {person}!": (
        "{person}, please do not touch my {adjective} {animal}. Thank you!"
    ),
    "I do not like the {animal} of {person}.": "I am sorry, but the {animal} of {person} is not quite what I like.",
    "Come to {city}, {person}!": "{person}, I would be very happy to see you in {city}.",
}
"""Each blunt form, and how it is said politely."""


def example(rng: Random) -> tuple[str, str]:
    adjective = rng.choice(ADJECTIVES)
    words = {"adjective": adjective, "a": article(adjective), "person": person(rng), "city": city(rng)}
    words |= {"animal": rng.choice(ANIMALS), "color": rng.choice(COLORS), "thing": rng.choice(THINGS)}
    blunt, polite = rng.choice(list(FORMS.items()))
    return blunt.format(**words), polite.format(**words)
