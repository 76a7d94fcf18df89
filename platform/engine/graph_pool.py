"""GraphPool: a step's launches, captured once for each GraphKey and replayed from then on."""

from bisect import bisect_left
from typing import NamedTuple

from .stream import Capture, Graph, Launch


class GraphKey(NamedTuple):
    """Every number that is baked into the launches of a step. What differs between steps of one key lies in memory."""

    tokens: int
    """New tokens with those of the padding: the grids of all kernels, and the bound of the LoRA chunk list."""
    sequences: int
    """With the padding: as many tokens are drawn."""
    lora_rounds: int
    """Times that adapters are added to each linear: 0 for the base alone, more than 1 where adapters are summed."""
    lora_vectors: bool
    """Whether any adapter scales or shifts what linears put out."""
    changed: frozenset[str]
    """LoraBatch.changed: norms and ends of the model that are computed again for the adapters."""
    own_logits: bool
    """LoraBatch.own_logits: whether logits have room for tokens that the base lacks."""
    attention_splits: int
    """Parts that a sequence's keys are cut into at most."""
    draws: bool
    """Whether any row is drawn, rather than the largest logit taken: False leaves launches out. `logprobs` alike."""
    logprobs: bool
    """Whether any row is described."""


class GraphPool:
    """`most` bounds how many are captured: beyond it a new key is launched without a graph, as each takes memory."""

    def __init__(self, capture: Capture, most: int) -> None:
        self._capture = capture
        self._most = most
        self._graphs: dict[GraphKey, Graph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, key: GraphKey, launch: Launch) -> None:
        """Enqueue one step of this key. `launch` runs once before its capture: kernels compile and tune then."""
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        launch()
        if len(self._graphs) < self._most:
            self._graphs[key] = self._capture(launch)


def size_ladder(most: int) -> tuple[int, ...]:
    """Sizes that steps of up to `most` sequences are padded to: 1, 2, 4, multiples of 8 to 256, of 32 beyond."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(288, most + 32, 32)]
    return (*[size for size in sizes if size < most], most)


def pad_size(count: int, ladder: tuple[int, ...]) -> int:
    """The least size that holds `count`."""
    return ladder[bisect_left(ladder, count)]
