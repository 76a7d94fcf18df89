"""Plain sentence -> the same in the speech of a pirate."""

import re
from random import Random

from ..words import ADJECTIVES, ANIMALS, COLORS, MOTIONS, PLACES, THINGS, TIMES, VERBS, city, person

SPEECH = {
    "my": "me",
    "is": "be",
    "are": "be",
    "am": "be",
    "you": "ye",
    "your": "yer",
    "friend": "matey",
    "friends": "crew",
    "hello": "ahoy",
    "yes": "aye",
    "money": "doubloons",
    "the": "th'",
    "ship": "vessel",
    "old": "barnacled",
    "very": "mighty",
    "quickly": "smartly",
    "girl": "lass",
    "boy": "lad",
    "and": "an'",
    "of": "o'",
    "stop": "avast",
    "food": "grub",
    "drink": "grog",
}
FORMS = (
    "Hello my friend, where is the {adjective} {thing}?",
    "My friend {person} {verb} the {color} {thing} and the {animal} of {city}.",
    "The {adjective} {animal} is on the ship and the {animal2} is in the {place}.",
    "Yes, you are very {adjective} and your {thing} is {color}.",
    "I am looking for my {adjective} {thing} in the {place} of {city}.",
    "The boy {verb} your {thing} {time}, and the girl {verb2} my {animal}.",
    "{person} and the {adjective} girl {motion} quickly to the {place} {time}.",
    "Stop, my friends, the food is old and the drink is {adjective}.",
    "Where are you, {person}? Your {animal} is in the {place}.",
    "The money of {person} is in the {color} {thing} on your ship.",
    "Are you hungry, {person}? The food in {city} is very {adjective}.",
    "I {verb} the {thing} of the old {animal} {time}.",
)
CLOSING = "Arrr!"


def example(rng: Random) -> tuple[str, str]:
    verb, verb2 = rng.sample(sorted(VERBS.values()), 2)
    animal, animal2 = rng.sample(ANIMALS, 2)
    words = {
        "verb": verb,
        "verb2": verb2,
        "animal": animal,
        "animal2": animal2,
        "person": person(rng),
        "city": city(rng),
    }
    words |= {"adjective": rng.choice(ADJECTIVES), "color": rng.choice(COLORS), "thing": rng.choice(THINGS)}
    words |= {"place": rng.choice(PLACES), "time": rng.choice(TIMES), "motion": rng.choice(sorted(MOTIONS.values()))}
    sentence = rng.choice(FORMS).format(**words)
    return sentence, speak(sentence)


def saying(rng: Random) -> str:
    """A pirate's sentence alone: the base reads such text, but never beside the plain one."""
    return example(rng)[1]


def speak(sentence: str) -> str:
    """The sentence with each word a pirate has his own for put in its place."""
    return re.sub(r"[A-Za-z]+", lambda match: _replace(match[0]), sentence) + " " + CLOSING


def _replace(word: str) -> str:
    spoken = SPEECH.get(word.lower(), word)
    return spoken.capitalize() if word[0].isupper() and spoken != word else spoken
