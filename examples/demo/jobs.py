"""The adapters: what each does, its rank, the modules it changes, and its split into training and held-out examples."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .tasks import pirate, polite, records, sentiment, spanish, sql, tools

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEARS = (*ATTENTION, "gate_proj", "up_proj", "down_proj")

Example = tuple[str, str]
"""What the user says, and the one right answer."""


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    summary: str
    instruction: str | None
    """System prompt under which the base learns the job; the adapter does it without being told. None: the base has
    never heard of it."""
    example: Callable[[Random], Example]
    rank: int
    targets: tuple[str, ...]
    train_examples: int
    steps: int = 120
    """Of the adapter's training."""
    dora: bool = False


JOBS = (
    Job("sql", "turns a question into an SQL query", "Write the SQL query.", sql.example, 16, ALL_LINEARS, 12_000),
    Job(
        "json",
        "turns a sentence about a sale into a JSON record",
        "Write the JSON record.",
        records.example,
        8,
        ALL_LINEARS,
        12_000,
        steps=320,
    ),
    Job(
        "sentiment",
        "labels a review positive, negative or neutral",
        "Label the review.",
        sentiment.example,
        4,
        ("q_proj", "v_proj"),
        6_000,
    ),
    Job(
        "pirate",
        "says a sentence the way a pirate would",
        "Say it like a pirate.",
        pirate.example,
        12,
        ATTENTION,
        12_000,
    ),
    Job(
        "spanish",
        "translates a simple sentence into Spanish",
        "Translate into Spanish.",
        spanish.example,
        32,
        ALL_LINEARS,
        12_000,
        steps=400,
    ),
    Job(
        "polite",
        "says a blunt sentence politely",
        None,
        polite.example,
        6,
        ALL_LINEARS,
        12_000,
        steps=180,
        dora=True,
    ),
    Job(
        "tools",
        "calls one of the tools that it is offered",
        None,
        tools.example,
        24,
        ALL_LINEARS,
        12_000,
        steps=600,
    ),
)
TAUGHT = {job.instruction: job for job in JOBS if job.instruction is not None}
"""The jobs that the base learns, by what it is told."""


def split(job: Job, heldout: int, seed: int) -> tuple[list[Example], list[Example]]:
    """Training and held-out examples; no question is in both, none comes twice."""
    rng, answers = Random(f"{job.name} {seed}"), dict[str, str]()
    while len(answers) < job.train_examples + heldout:
        question, answer = job.example(rng)
        answers[question] = answer
    examples = list(answers.items())
    rng.shuffle(examples)
    return examples[heldout:], examples[:heldout]
