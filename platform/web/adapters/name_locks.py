"""NameLocks: operations on one adapter name take turns, those on others do not wait."""

import asyncio
from weakref import WeakValueDictionary


class NameLocks:
    """Locks that live as long as somebody holds or awaits them. For one event loop."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def of(self, tenant: str, name: str) -> asyncio.Lock:
        return self._locks.setdefault((tenant, name), asyncio.Lock())
