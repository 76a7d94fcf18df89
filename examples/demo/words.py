"""Word lists shared by the base corpus and the tasks. Held-out examples are new combinations of these words."""

from random import Random


def listed(words: str) -> list[str]:
    return words.split()


FIRST_NAMES = listed("""
    Adam Alice Amir Anna Ben Carla Clara Daniel Diego Elena Emma Eva Felix Fiona George Grace Hana Hugo Ida Igor
    Ines Ivan Jana Julia Kofi Lara Leo Lina Lucas Maria Marta Max Mia Milan Nadia Nina Noah Nora Olga Oscar Paul
    Petra Rosa Ruth Sam Sara Simon Sofia Theo Tom Uma Vera Victor Yuki Zara Zoe
""")

CITIES = listed("""
    Athens Berlin Boston Cairo Chicago Dublin Geneva Hamburg Helsinki Istanbul Kyoto Lagos Lima Lisbon London Lyon
    Madrid Mexico Milan Montreal Mumbai Munich Nairobi Naples Oslo Paris Porto Prague Quito Rome Seoul Seville Tokyo
    Toronto Tunis Turin Vienna Warsaw Zurich
""")

JOBS = listed("""
    actor architect artist baker barber butcher carpenter chef cleaner coach dancer dentist designer doctor driver
    electrician engineer farmer firefighter gardener judge lawyer librarian mechanic musician nurse painter
    photographer pilot plumber poet professor sailor singer surgeon tailor teacher waiter writer
""")

COLORS = listed("black blue brown gold gray green orange pink purple red silver white yellow")

ANIMALS = listed("bear bird cat cow dog duck fox frog goat horse lion monkey mouse owl pig rabbit sheep tiger wolf")

PLACES = listed("""
    beach bridge castle church farm forest garden harbor hill hotel house island kitchen library market mountain
    museum office park river school shop station street theater tower village
""")

THINGS = listed("""
    apple bag ball basket bell blanket boat book bottle box bread cake candle chair clock coat coin cup flower hat
    kite knife lamp letter map mirror orange pencil picture radio ring rope shirt shoe spoon stone sword table
    ticket umbrella watch
""")

ADJECTIVES = listed("""
    big bright brave clean clever cold dark fast friendly funny gentle happy heavy hungry kind lazy little loud
    lucky new old proud quiet sad shiny shy silly simple slow small soft strong sweet tall tired warm wet wild wise
    young
""")

VERBS = {
    "eat": "ate",
    "find": "found",
    "draw": "drew",
    "hide": "hid",
    "see": "saw",
    "carry": "carried",
    "want": "wanted",
}
VERBS |= {"watch": "watched", "clean": "cleaned", "lose": "lost", "bring": "brought", "love": "loved", "sell": "sold"}
VERBS |= {"buy": "bought", "take": "took", "paint": "painted", "follow": "followed", "need": "needed", "keep": "kept"}

MOTIONS = {"walk": "walked", "run": "ran", "go": "went", "jump": "jumped", "fly": "flew", "travel": "traveled"}

TIMES = ["today", "tonight", "this morning", "yesterday", "in the evening", "last night", "every day", "on Sunday"]
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

NUMBERS = (5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 80, 90)
"""Each is one token; a small model learns to copy a dozen of them, not a hundred."""


def person(rng: Random) -> str:
    return rng.choice(FIRST_NAMES)


def city(rng: Random) -> str:
    return rng.choice(CITIES)


def article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
