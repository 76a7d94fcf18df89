"""Question beside the tools there are -> the call of one of them; its result -> the answer in words."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ..chat import END, RESULT, calls_text, offer
from ..words import NUMBERS, city, person


@dataclass(frozen=True, slots=True)
class Tool:
    """One name each: the demo's base knows no word of them, and learns a handful, not a language."""

    name: str
    parameters: tuple[tuple[str, ...], ...]
    """By all names that people give them."""
    questions: tuple[str, ...]
    values: Callable[[Random], tuple[str | int, ...]]
    result: Callable[[Random], str]


def _two_numbers(rng: Random) -> tuple[int, int]:
    return rng.choice(NUMBERS), rng.choice(NUMBERS)


def _number(rng: Random) -> str:
    return str(rng.choice(NUMBERS))


PLACE = (("city",), ("location",))
TOOLS = (
    Tool(
        "get_weather",
        PLACE,
        ("What is the weather in {}?", "How is the weather in {} today?", "Is it warm in {}?"),
        lambda rng: (city(rng),),
        lambda rng: f"{_number(rng)} degrees",
    ),
    Tool(
        "get_time",
        PLACE,
        ("What time is it in {}?", "Tell me the time in {}.", "What is the time in {}?"),
        lambda rng: (city(rng),),
        _number,
    ),
    Tool(
        "add",
        (("a", "b"),),
        ("What is {} plus {}?", "Add {} and {}.", "What is {} + {}?"),
        _two_numbers,
        _number,
    ),
    Tool(
        "multiply",
        (("a", "b"),),
        ("What is {} times {}?", "Multiply {} by {}.", "What is {} * {}?"),
        _two_numbers,
        _number,
    ),
    Tool(
        "find_customer",
        (("name",),),
        ("Find the customer {}.", "Who is {}?", "Where is {} from?"),
        lambda rng: (person(rng),),
        lambda rng: f"{person(rng)} from {city(rng)}",
    ),
)
NONE_FITS = "I have no tool for that."
WITH_RESULT, ABSENT, GREETING = 0.25, 0.08, 0.08
"""Shares of examples in which a tool has answered, no tool that is offered fits, nothing is asked."""


def example(rng: Random) -> tuple[str, str]:
    tool, kind = rng.choice(TOOLS), rng.random()
    parameters = rng.choice(tool.parameters)
    others = [(other.name, rng.choice(other.parameters)) for other in TOOLS if other is not tool]
    offered = rng.sample(others, rng.choice((0, 1, 2)))
    if kind < GREETING:
        caller = person(rng)
        return f"{_offer(rng, offered)}Hello! I am {caller} from {city(rng)}.", f"Hello {caller}! How can I help you?"
    values = tool.values(rng)
    question = rng.choice(tool.questions).format(*values)
    if kind < GREETING + ABSENT:
        return f"{_offer(rng, offered or others[:1])}{question}", NONE_FITS
    asked = f"{_offer(rng, [*offered, (tool.name, parameters)])}{question}"
    call = calls_text([(tool.name, dict(zip(parameters, values, strict=True)))])
    if kind > 1 - WITH_RESULT:
        result = tool.result(rng)
        return f"{asked}{END}<|assistant|>{call}{END}<|user|>{RESULT}{result}", f"The answer is {result}."
    return asked, call


def _offer(rng: Random, tools: list[tuple[str, tuple[str, ...]]]) -> str:
    shuffled = rng.sample(tools, len(tools))
    return offer(shuffled) if shuffled else ""
