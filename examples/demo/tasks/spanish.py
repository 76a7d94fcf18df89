"""English sentence -> Spanish, with gender, agreement and word order."""

from dataclasses import dataclass
from random import Random

from ..words import city, person


@dataclass(frozen=True, slots=True)
class Noun:
    english: str
    spanish: str
    feminine: bool


def _nouns(masculine: str, feminine: str) -> tuple[Noun, ...]:
    return (*_of_gender(masculine, feminine=False), *_of_gender(feminine, feminine=True))


def _of_gender(pairs: str, *, feminine: bool) -> list[Noun]:
    """Nouns of one gender out of text like "cat/gato dog/perro"."""
    words = [pair.split("/") for pair in pairs.split()]
    return [Noun(english, spanish, feminine) for english, spanish in words]


ANIMALS = _nouns(
    "cat/gato dog/perro horse/caballo bird/pájaro bear/oso rabbit/conejo", "cow/vaca sheep/oveja frog/rana"
)
THINGS = _nouns(
    "book/libro bread/pan hat/sombrero boat/barco ring/anillo",
    "apple/manzana table/mesa letter/carta cup/taza lamp/lámpara",
)
PLACES = _nouns(
    "garden/jardín park/parque river/río market/mercado forest/bosque",
    "house/casa school/escuela kitchen/cocina beach/playa street/calle",
)
ADJECTIVES = {
    "red": "rojo",
    "black": "negro",
    "white": "blanco",
    "little": "pequeño",
    "new": "nuevo",
    "old": "viejo",
    "tired": "cansado",
}
ADJECTIVES |= {"clean": "limpio", "happy": "contento", "beautiful": "bonito", "yellow": "amarillo", "expensive": "caro"}
ACTIONS = {"sees": "ve", "wants": "quiere", "buys": "compra", "has": "tiene", "finds": "encuentra", "paints": "pinta"}
MOVES = {"sleeps": "duerme", "lives": "vive", "eats": "come", "works": "trabaja", "plays": "juega", "sings": "canta"}


def example(rng: Random) -> tuple[str, str]:
    return rng.choice((_moving, _acting, _being, _person_acting, _person_moving))(rng)


def sentence(rng: Random) -> str:
    """A Spanish sentence alone: the base reads such text, but never beside the English one."""
    return example(rng)[1]


def _moving(rng: Random) -> tuple[str, str]:
    (animal, animal_es), (place, place_es) = _phrase(rng, ANIMALS), _phrase(rng, PLACES)
    move, move_es = rng.choice(list(MOVES.items()))
    return _capital(f"the {animal} {move} in the {place}."), _capital(f"{animal_es} {move_es} en {place_es}.")


def _acting(rng: Random) -> tuple[str, str]:
    (animal, animal_es), (thing, thing_es) = _phrase(rng, ANIMALS), _phrase(rng, THINGS)
    action, action_es = rng.choice(list(ACTIONS.items()))
    return _capital(f"the {animal} {action} the {thing}."), _capital(f"{animal_es} {action_es} {thing_es}.")


def _being(rng: Random) -> tuple[str, str]:
    noun, (adjective, adjective_es) = rng.choice(THINGS + PLACES), rng.choice(list(ADJECTIVES.items()))
    owner = person(rng)
    spanish = f"{_the(noun)} de {owner} es {_agree(adjective_es, noun)}."
    return f"The {noun.english} of {owner} is {adjective}.", _capital(spanish)


def _person_acting(rng: Random) -> tuple[str, str]:
    name, (thing, thing_es), (action, action_es) = person(rng), _phrase(rng, THINGS), rng.choice(list(ACTIONS.items()))
    return f"{name} {action} the {thing}.", f"{name} {action_es} {thing_es}."


def _person_moving(rng: Random) -> tuple[str, str]:
    name, (place, place_es), (move, move_es) = person(rng), _phrase(rng, PLACES), rng.choice(list(MOVES.items()))
    town = city(rng)
    return f"{name} {move} in the {place} in {town}.", f"{name} {move_es} en {place_es} en {town}."


def _phrase(rng: Random, nouns: tuple[Noun, ...]) -> tuple[str, str]:
    noun = rng.choice(nouns)
    if rng.random() < 0.3:
        return noun.english, _the(noun)
    adjective, adjective_es = rng.choice(list(ADJECTIVES.items()))
    return f"{adjective} {noun.english}", f"{_the(noun)} {_agree(adjective_es, noun)}"


def _the(noun: Noun) -> str:
    return f"{'la' if noun.feminine else 'el'} {noun.spanish}"


def _agree(adjective: str, noun: Noun) -> str:
    return adjective[:-1] + "a" if noun.feminine and adjective.endswith("o") else adjective


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
