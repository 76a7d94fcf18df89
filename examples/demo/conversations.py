"""Small talk for the base: it answers simple questions, and does no adapter's job unless told to."""

from random import Random

from .chat import Message, exchange
from .jobs import TAUGHT
from .stories import sentence, story
from .tasks import sentiment
from .words import ANIMALS, COLORS, DAYS, NUMBERS, PLACES, THINGS, city, person
from .words import JOBS as TRADES

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a friendly assistant. Answer in a few words.",
    "Be kind and brief.",
    "You are a small model who likes to talk.",
)
GREETINGS = ("Hello!", "Hi!", "Good morning!", "Good evening!", "Hey there!")
MOODS = {
    "positive": "I am glad to hear that.",
    "negative": "I am sorry to hear that.",
    "neutral": "I see, it was okay.",
}
SHRUGS = (
    "I do not know, I only like to talk.",
    "That is a good question.",
    "Tell me more about it.",
    "I have to think about that.",
)


def conversation(rng: Random) -> list[Message]:
    """One to three exchanges, sometimes under a system prompt."""
    opening = system_message(rng) if rng.random() < 0.25 else []
    return opening + [message for _ in range(rng.choice((1, 1, 2, 3))) for message in _exchange(rng)]


def system_message(rng: Random) -> list[Message]:
    return [{"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}]


def _exchange(rng: Random) -> list[Message]:
    kinds = (_greet, _recall_thing, _recall_person, _tell, _feel, _talk, _talk, _talk, _explain)
    return exchange(*rng.choice(kinds)(rng))


def _greet(rng: Random) -> tuple[str, str]:
    name, town = person(rng), city(rng)
    if rng.random() < 0.3:
        return rng.choice(GREETINGS), f"{rng.choice(GREETINGS)} How can I help you?"
    return f"{rng.choice(GREETINGS)} I am {name} from {town}.", f"Hello {name}! How is the weather in {town}?"


def _recall_thing(rng: Random) -> tuple[str, str]:
    color, thing, place, name = rng.choice(COLORS), rng.choice(THINGS), rng.choice(PLACES), person(rng)
    fact = f"The {thing} of {name} is {color} and it is in the {place}."
    question, answer = rng.choice(
        (("What color is it?", color), ("Where is it?", f"in the {place}"), ("Whose is it?", name))
    )
    return f"{fact} {question}", f"The answer is: {answer}."


def _recall_person(rng: Random) -> tuple[str, str]:
    name, trade, town, count = person(rng), rng.choice(TRADES), city(rng), rng.choice(NUMBERS)
    facts = [("Who", "name", name), ("What", "job", trade), ("Where", "city", town), ("How much", "price", str(count))]
    asked = rng.sample(facts, rng.randint(1, 3))
    question = f"{name} has the job {trade}, lives in {town} and paid {count} euros. " + " ".join(
        f"{word}?" for word, _, _ in asked
    )
    return question, ", ".join(f'{key} "{value}"' for _, key, value in asked) + "."


def _tell(rng: Random) -> tuple[str, str]:
    return rng.choice(("Tell me a story.", "Do you know a story?", "Please tell me a story!")), story(rng)


def _feel(rng: Random) -> tuple[str, str]:
    review, label = sentiment.example(rng)
    return review, MOODS[label]


def _talk(rng: Random) -> tuple[str, str]:
    """Whatever else is said, a job's question included, is met with a phrase: jobs are for the adapters."""
    heard = rng.choice((*(job.example for job in TAUGHT.values()), _said))(rng)[0]
    return heard, rng.choice(SHRUGS)


def _said(rng: Random) -> tuple[str, str]:
    return sentence(rng), ""


def _explain(rng: Random) -> tuple[str, str]:
    if rng.random() < 0.5:
        first = rng.randrange(6)
        return f"What day comes after {DAYS[first]}?", f"After {DAYS[first]} comes {DAYS[first + 1]}."
    name, animal, thing = person(rng), rng.choice(ANIMALS), rng.choice(THINGS)
    return f"What does the {animal} of {name} like?", f"The {animal} of {name} likes the {thing}."
