"""What an answer is made of, in the order in which it comes."""

from dataclasses import dataclass


@dataclass(slots=True)
class Reasoning:
    """What the model thought before it answered."""

    text: str


@dataclass(slots=True)
class Words:
    """Text for people."""

    text: str


@dataclass(slots=True)
class Begun:
    """A call; those of an answer are numbered from 0."""

    number: int
    name: str


@dataclass(slots=True)
class Arguments:
    """More of the JSON text of a call's arguments."""

    number: int
    text: str


Event = Reasoning | Words | Begun | Arguments
