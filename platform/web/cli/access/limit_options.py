"""Limits of keys and tenants as options, and in words."""

from collections.abc import Mapping
from typing import Annotated, Final

import typer

Rpm = Annotated[int | None, typer.Option("--rpm", help="Requests per minute.")]
Tpm = Annotated[int | None, typer.Option("--tpm", help="Prompt and output tokens per minute.")]
Concurrency = Annotated[int | None, typer.Option("--concurrency", help="Requests in flight.")]
PerDay = Annotated[int | None, typer.Option("--tokens-per-day", help="Tokens per day (UTC).")]
LIMITS: Final = {
    "requests_per_minute": "rpm",
    "tokens_per_minute": "tpm",
    "max_concurrent": "concurrent",
    "tokens_per_day": "tokens per day",
}


def format_limits(limits: Mapping[str, int | None]) -> str:
    named = ((limits.get(name), words) for name, words in LIMITS.items())
    return ", ".join(f"{limit:,} {words}" for limit, words in named if limit is not None) or "none"
