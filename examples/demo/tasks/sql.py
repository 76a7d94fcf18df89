"""Question in words -> SQL query."""

from dataclasses import dataclass
from random import Random

from ..words import COLORS, JOBS, NUMBERS, city, person


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    words: tuple[str, ...]
    """Columns compared with a word."""
    numbers: tuple[str, ...]


TABLES = (
    Table("customers", ("city", "job"), ("age", "balance")),
    Table("employees", ("city", "job"), ("age", "salary")),
    Table("students", ("city", "teacher"), ("age", "score")),
    Table("products", ("color", "maker"), ("price", "stock", "weight")),
    Table("books", ("author", "publisher"), ("price", "pages", "year")),
    Table("movies", ("director", "actor"), ("year", "length", "rating")),
    Table("cars", ("color", "owner"), ("price", "year", "speed")),
    Table("hotels", ("city", "owner"), ("price", "rooms", "rating")),
)
PHRASES = {
    "city": "in {}",
    "job": "working as {}",
    "color": "painted {}",
    "teacher": "taught by {}",
    "maker": "made by {}",
}
PHRASES |= {
    "author": "written by {}",
    "publisher": "published by {}",
    "director": "directed by {}",
    "actor": "starring {}",
}
PHRASES |= {"owner": "owned by {}"}
AGGREGATES = {"average": "AVG", "total": "SUM", "highest": "MAX", "lowest": "MIN"}
COMPARISONS = {"above": ">", "over": ">", "greater than": ">", "below": "<", "under": "<", "less than": "<"}


def example(rng: Random) -> tuple[str, str]:
    table = rng.choice(TABLES)
    return rng.choice((_count, _select, _aggregate, _compare, _order))(rng, table)


def query(rng: Random) -> str:
    """A query alone: the base reads such text, but never beside the question."""
    return example(rng)[1]


def _count(rng: Random, table: Table) -> tuple[str, str]:
    phrase, condition = _condition(rng, table)
    question = rng.choice(("How many {} are {}?", "Count the {} {}.", "How many {} are there {}?"))
    return question.format(table.name, phrase), f"SELECT COUNT(*) FROM {table.name} WHERE {condition};"


def _select(rng: Random, table: Table) -> tuple[str, str]:
    phrase, condition = _condition(rng, table)
    question = rng.choice(("Show the {} of all {} {}.", "List the {} of {} {}.", "What is the {} of the {} {}?"))
    column = rng.choice(table.numbers)
    return question.format(column, table.name, phrase), f"SELECT {column} FROM {table.name} WHERE {condition};"


def _aggregate(rng: Random, table: Table) -> tuple[str, str]:
    word, function = rng.choice(list(AGGREGATES.items()))
    column, (phrase, condition) = rng.choice(table.numbers), _condition(rng, table)
    question = rng.choice(("What is the {} {} of {} {}?", "Give me the {} {} of {} {}."))
    sql = f"SELECT {function}({column}) FROM {table.name} WHERE {condition};"
    return question.format(word, column, table.name, phrase), sql


def _compare(rng: Random, table: Table) -> tuple[str, str]:
    word, sign = rng.choice(list(COMPARISONS.items()))
    column = rng.choice(table.numbers)
    limit = rng.choice(NUMBERS)
    question = rng.choice(("Which {} have a {} {} {}?", "Find all {} with {} {} {}."))
    return question.format(
        table.name, column, word, limit
    ), f"SELECT * FROM {table.name} WHERE {column} {sign} {limit};"


def _order(rng: Random, table: Table) -> tuple[str, str]:
    word, direction = rng.choice((("highest", "DESC"), ("lowest", "ASC")))
    column, limit = rng.choice(table.numbers), rng.choice(NUMBERS)
    question = rng.choice(("Show the {} {} with the {} {}.", "Which {} {} have the {} {}?"))
    sql = f"SELECT * FROM {table.name} ORDER BY {column} {direction} LIMIT {limit};"
    return question.format(limit, table.name, word, column), sql


def _condition(rng: Random, table: Table) -> tuple[str, str]:
    column = rng.choice(table.words)
    value = _value(rng, column)
    return PHRASES[column].format(value), f"{column} = '{value}'"


def _value(rng: Random, column: str) -> str:
    if column in ("color", "job"):
        return rng.choice(COLORS if column == "color" else JOBS)
    return city(rng) if column == "city" else person(rng)
