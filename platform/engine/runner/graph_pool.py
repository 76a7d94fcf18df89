"""GraphPool: a step's launches, captured once for each GraphKey and replayed from then on."""

import logging
import time
from typing import Final, NamedTuple

from ..device.faults import memory_error
from ..device.stream import Capture, Graph, Launch

logger = logging.getLogger(__name__)

PATIENCE: Final = 16
"""Launches after which a capture, which takes as long as a few of them, is worth while for a key that comes again."""
STEPS_IN_FLIGHT: Final = 2
"""At most, as of steps.py."""


class GraphKey(NamedTuple):
    """Every number that is baked into the launches of a step. What differs between steps of one key lies in memory."""

    tokens: int
    """New tokens with those of the padding: the grids of all kernels, and the bound of the LoRA chunk list."""
    sequences: int
    """With the padding: as many tokens are drawn."""
    mixed: bool
    """Batch.mixed: whether sequences may have several tokens each."""
    lora_rounds: int
    """Times that adapters are added to each linear: 0 for the base alone, more than 1 where adapters are summed."""
    lora_vectors: bool
    """Whether any adapter scales or shifts what linears put out."""
    changed: frozenset[str]
    """LoraBatch.changed: norms and ends of the model that are computed again for the adapters."""
    own_logits: bool
    """LoraBatch.own_logits: whether logits have room for tokens that the base lacks."""
    on_experts: bool
    """LoraBatch.on_experts: whether adapters are added to experts."""
    attention_cuts: int
    """By which the sequences' keys are cut."""
    draws: bool
    """Whether any row is drawn, rather than the largest logit taken: False leaves launches out. `logprobs` alike."""
    logprobs: bool
    """Whether any row is described."""


class GraphPool:
    """At most `most` steps are captured, as each takes memory. Then a key that was launched PATIENCE times without a
    graph takes the place of the one whose last use is longest ago.

    What gives way is not in use on the device: nothing does where `most` is not above the steps in flight.
    """

    def __init__(self, capture: Capture, most: int) -> None:
        self.serves = False
        """Whether memory that runs out in a capture ends no more than captures: its step was launched. Before, it is
        raised."""
        self.seconds = 0.0
        """That captures took, each with the launch before it."""
        self._capture = capture
        self._most = most
        self._graphs: dict[GraphKey, Graph] = {}
        """The latest use last."""
        self._launched: dict[GraphKey, int] = {}
        """How often without a graph, since the pool is full."""

    def __len__(self) -> int:
        return len(self._graphs)

    def disabled(self) -> "GraphPool":
        """One that captures nothing: every step is launched."""
        return GraphPool(self._capture, 0)

    def run(self, key: GraphKey, launch: Launch) -> None:
        """Enqueue one step of this key. `launch` runs once before its capture: kernels compile and tune then."""
        graph = self._graphs.pop(key, None)
        if graph is not None:
            self._graphs[key] = graph
            graph.replay()
            return
        began = time.perf_counter()
        launch()
        if len(self._graphs) < self._most or self._gives_way(key):
            self._add(key, launch)
            self.seconds += time.perf_counter() - began

    def _add(self, key: GraphKey, launch: Launch) -> None:
        try:
            self._graphs[key] = self._capture(launch)
        except Exception as error:
            if not self.serves or memory_error(error) is None:
                raise
            self._most = len(self._graphs)
            logger.warning("a step was not captured, as memory ran out; from now on no more than %d are", self._most)

    def _gives_way(self, key: GraphKey) -> bool:
        """Whether a graph was given up for it."""
        if self._most <= STEPS_IN_FLIGHT:
            return False
        count = self._launched.pop(key, 0) + 1
        if count == PATIENCE:
            del self._graphs[next(iter(self._graphs))]
            return True
        if len(self._launched) >= self._most:
            del self._launched[next(iter(self._launched))]
        self._launched[key] = count
        return False
