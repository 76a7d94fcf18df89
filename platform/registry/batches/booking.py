"""Sums: what records of a journal add to the usage ledger, and to the counts of their batch."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from ..usage.ledger import Account, AccountHour
from .journal import Record, Used

TOKENS: Final = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


class Sums:
    """`tokens`: by the names of a batch's columns."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.completed = self.failed = 0
        self.tokens = Counter[str]()
        self._by_use: dict[tuple[str, str, str, int], Counter[str]] = {}
        for record in records:
            self.completed += record.succeeded
            self.failed += not record.succeeded
            if record.used is not None:
                self._add(record.used)

    def by_place(self, tenant: str, actor: str) -> Mapping[AccountHour, Mapping[str, int]]:
        """As the ledger books them."""
        return {
            AccountHour(Account(tenant, actor, digest, name), day, hour): counts
            for (digest, name, day, hour), counts in self._by_use.items()
        }

    def _add(self, used: Used) -> None:
        self.tokens.update({name: getattr(used, name) for name in TOKENS})
        place = used.adapter_digest, used.adapter_name, used.day, used.hour
        counts = self._by_use.setdefault(place, Counter())
        counts["requests"] += 1
        counts["errors"] += used.failed
        counts["prompt_tokens"] += used.prompt_tokens
        counts["cached_tokens"] += used.cached_tokens
        counts["completion_tokens"] += used.completion_tokens
