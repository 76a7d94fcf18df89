"""What stands in the engine's place where none runs."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loraplex.registry.files.preflight import Prepared
    from loraplex.registry.report import Finding
    from loraplex.registry.snapshot import Snapshots


class NoEngine:
    status = None


class NoReconciler:
    """A server that starts later brings its engine to what is desired."""

    failures: Mapping[str, str] = {}

    def __init__(self, snapshots: "Snapshots") -> None:
        self._snapshots = snapshots

    async def reconcile(self) -> None:
        await asyncio.to_thread(self._snapshots.refresh)


class NoEffectCheck:
    async def judge(self, ready: "Prepared", tenant: str) -> "Finding":
        """A warning: no logits are compared."""
        from ...adapters.effect_check import NOT_HERE

        return NOT_HERE


class NoUse:
    """Of adapters, in this process."""

    def __init__(self) -> None:
        from ...observability.adapter_use import AdapterUse
        from ...observability.hourly_use import HourlyUse

        self.use, self.hours = AdapterUse(), HourlyUse()

    def forget(self, tenant: str, adapter: str) -> None:
        pass
