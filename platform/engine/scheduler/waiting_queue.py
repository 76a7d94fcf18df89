"""The waiting requests: who is refused when the queue is full. The engine decides by it, and its client before that."""

from collections import Counter
from collections.abc import Iterable, Mapping


def gives_way(tenant: str, counts: Mapping[str, int]) -> str | None:
    """Whose request leaves a full queue for one of `tenant`: the tenant with most of the waiting requests. None: the
    newcomer is refused, because its tenant would then have as many."""
    heaviest = max(counts, key=counts.__getitem__, default=tenant)
    return None if counts.get(tenant, 0) + 1 >= counts.get(heaviest, 0) else heaviest


def full_words(count: int) -> str:
    return f"{count} requests wait already, as many as may; try again in a few seconds"


class WaitingRequests:
    """As the client knows them: sent, and neither started nor ended by what the engine has told so far."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tenants: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tenants)

    def add(self, request_id: str, tenant: str) -> None:
        self._tenants[request_id] = tenant
        self._counts[tenant] += 1

    def remove(self, request_ids: Iterable[str]) -> None:
        """Those that wait no more; others are passed over."""
        for request_id in request_ids:
            tenant = self._tenants.pop(request_id, None)
            if tenant is not None:
                self._counts[tenant] -= 1
                if not self._counts[tenant]:
                    del self._counts[tenant]

    def refusal(self, tenant: str) -> str | None:
        """Why the engine would refuse one more request of the tenant now, or None."""
        if len(self) < self._most or gives_way(tenant, self._counts) is not None:
            return None
        return full_words(len(self))
