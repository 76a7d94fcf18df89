"""Orders: grammars that wait to be compiled. Tenants take turns, lest the slow ones of one keep all others back."""

import threading
from collections import OrderedDict, deque

from .messages import Open

Turn = tuple[bool, str]
"""Whether these have compiled before, and whose they are."""


class Orders:
    def __init__(self) -> None:
        self._waiting: OrderedDict[Turn, deque[Open]] = OrderedDict()
        self._changed = threading.Condition()

    def put(self, order: Open) -> None:
        with self._changed:
            self._waiting.setdefault((order.compiled_before, order.tenant), deque()).append(order)
            self._changed.notify()

    def get(self) -> Open:
        """Waits for one. What an earlier process has compiled goes first: it follows answers that have begun."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            turn = next((turn for turn in self._waiting if turn[0]), next(iter(self._waiting)))
            orders = self._waiting.pop(turn)
            order = orders.popleft()
            if orders:
                self._waiting[turn] = orders
            return order
