"""Inference: what it takes to serve requests to models, made once at start."""

import asyncio
from dataclasses import dataclass, field

from loraplex.engine.model.config import ModelConfig
from loraplex.registry.snapshot import Snapshots

from ..adapters.engine_door import EngineDoor
from ..adapters.reconciler import Reconciler
from ..http.limits import Slots
from ..observability.metrics import Metrics
from ..observability.tracing import Tracing
from ..quotas.quotas import Quotas
from ..routing.callers import RecentCallers
from ..routing.shadow_pool import ShadowPool
from ..routing.tallies import Tallies
from ..settings.settings import Settings
from ..text.text_processor_cache import TextProcessorCache


@dataclass(slots=True, kw_only=True)
class Inference:
    settings: Settings
    model: ModelConfig
    engine: EngineDoor
    snapshots: Snapshots
    reconciler: Reconciler
    text_processors: TextProcessorCache
    metrics: Metrics
    quotas: Quotas
    requests: Slots
    """In flight."""
    background: Slots
    """Those of batches."""
    tallies: Tallies
    callers: RecentCallers
    shadows: ShadowPool
    tracing: Tracing | None = None
    """None: nobody collects spans."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is to end: nothing new is begun, endless streams end."""

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt plus output, as far as known: the engine may have room for less than the checkpoint says."""
        if self.engine.info is not None:
            return self.engine.info.max_model_len
        return self.model.length(self.settings.max_model_len)
