"""What the heartbeat tells of blocks and adapters. Runs twice a second, so it walks lists and hashes nothing."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from ..kv_cache.block_pool import PADDING_BLOCK
from ..status import AdapterStatus, TenantStatus
from .request_table import RequestTable
from .sequence import Sequence

CACHED: Final = 1
BASE: Final = 2
FIRST_ADAPTER: Final = 3
ADAPTER_COLORS: Final = 250


def map_blocks(digests: list[str], request_table: RequestTable) -> bytes:
    """EngineStatus.block_map; `digests` in the order of EngineStatus.adapters."""
    colors = {digest: FIRST_ADAPTER + index % ADAPTER_COLORS for index, digest in enumerate(digests)}
    pool = request_table.pool
    blocks = bytearray(pool.num_blocks)
    for block in pool.cached():
        blocks[block] = CACHED
    for sequence in [*request_table.running, *request_table.leaving]:
        # The first of several. An adapter that was unregistered while it runs has no place in the list.
        color = next((colors[digest] for digest in sequence.request.digests if digest in colors), BASE)
        for block in sequence.blocks:
            blocks[block] = color
    return bytes(blocks[PADDING_BLOCK + 1 :])


def count_adapters(adapters: list[AdapterStatus], request_table: RequestTable) -> None:
    """Fill in how many sequences run with each adapter and how many wait for it."""
    running = _count(request_table.running)
    waiting = _count(request_table.queue) + _count(request_table.preempted)
    for adapter in adapters:
        adapter.running = running[adapter.digest]
        adapter.waiting = waiting[adapter.digest]


def count_tenants(request_table: RequestTable, queries: Counter[str], hits: Counter[str]) -> dict[str, TenantStatus]:
    """`queries` and `hits`: prompt tokens looked up in the prefix cache and found there, by tenant."""
    running = Counter(sequence.request.tenant for sequence in request_table.running)
    waiting = Counter(sequence.request.tenant for sequence in (*request_table.queue, *request_table.preempted))
    blocks: Counter[str] = Counter()
    for sequence in request_table.running:
        blocks[sequence.request.tenant] += len(sequence.blocks)
    return {
        tenant: TenantStatus(
            running=running[tenant],
            waiting=waiting[tenant],
            blocks=blocks[tenant],
            prefix_queries=queries[tenant],
            prefix_hits=hits[tenant],
        )
        for tenant in {*queries, *running, *waiting}
    }


def _count(sequences: Iterable[Sequence]) -> Counter[str]:
    return Counter(digest for sequence in sequences for digest in sequence.request.digests)
