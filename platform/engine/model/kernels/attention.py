"""The attention of one layer of a compiled step: heads turned and keys written, then every token's query answered.

Shapes as in arguments.py.
"""

from numba import carray, njit

from loraplex.quant.kernels.instructions.address import pointer

from ...attention.kernels.arguments import Paged
from ...attention.kernels.attend import attend
from ...attention.kernels.paged import Cache, Scores, Step, merge
from ...attention.kernels.rotate import Heads
from ...attention.kernels.write import SERIAL_TOKENS, rotate_and_write, rotate_and_write_parallel
from ...kernels.vector import LANES, Array, load, store
from .arguments import (
    ANGLES,
    COS,
    GROUPS,
    HAS_VALUE_NORM,
    IS_INTERLEAVED,
    KEY_NORM,
    KEY_NORM_SIZE,
    MIXER_EPS,
    MODULES,
    OWN_KEY_NORM,
    OWN_QUERY_NORM,
    PLACE,
    POSITIONS,
    QUERY_NORM,
    QUERY_NORM_SIZE,
    QUERY_SCALE,
    SCALED_POSITIONS,
    SIN,
    Lora,
    Model,
)


@njit(inline="always")
def rotate_all(model: Model, layer: int, paged: Paged, lora: Lora, cache: Cache, qkv: Array, query: Array) -> None:
    """qkv [T, (H + 2 G) D] -> query [T, H, D]; keys and values to the cache, as each token's adapter has them."""
    clipped = paged.clipped[model.table[layer, PLACE]]
    query_norm = _floats(model, layer, QUERY_NORM, model.table[layer, QUERY_NORM_SIZE])
    key_norm = _floats(model, layer, KEY_NORM, model.table[layer, KEY_NORM_SIZE])
    heads = _heads(model, layer, query_norm, key_norm)
    if len(qkv) < SERIAL_TOKENS:
        rotate_and_write(qkv, paged.positions, paged.slots, heads, cache, clipped, query)
    else:
        rotate_and_write_parallel(qkv, paged.positions, paged.slots, heads, cache, clipped, query, paged.workers)
    if len(query_norm) and len(lora.slots):
        _rotate_again(model, layer, query_norm, key_norm, paged, lora, cache, qkv, query)


@njit(inline="always")
def _rotate_again(
    model: Model, layer: int, query_norm: Array, key_norm: Array, paged: Paged, lora: Lora, cache: Cache, qkv: Array,
    query: Array,
) -> None:  # fmt: skip
    """For the tokens whose adapters norm queries or keys with weights of their own."""
    clipped, kinds = paged.clipped[model.table[layer, PLACE]], model.norm_kinds[model.table[layer, MODULES]]
    places = model.ordinals[layer, GROUPS + OWN_QUERY_NORM], model.ordinals[layer, GROUPS + OWN_KEY_NORM]
    for token in range(len(qkv)):
        slot = lora.token_slot[token, 0]
        pages = lora.vectors[slot, kinds[OWN_QUERY_NORM]], lora.vectors[slot, kinds[OWN_KEY_NORM]]
        if slot >= 0 and max(pages) >= 0:
            own = _own(lora, places[0], pages[0], query_norm), _own(lora, places[1], pages[1], key_norm)
            heads = _heads(model, layer, own[0], own[1])
            one = slice(token, token + 1)
            rotate_and_write(qkv[one], paged.positions[one], paged.slots[one], heads, cache, clipped[one], query[one])


@njit
def _own(lora: Lora, ordinal: int, page: int, norm: Array) -> Array:
    """That of the base where there is no page."""
    start = page + ordinal * 2 * len(norm)
    return norm if page < 0 else lora.floats[start : start + len(norm)]


@njit(inline="always")
def _heads(model: Model, layer: int, query_norm: Array, key_norm: Array) -> Heads:
    row = model.table[layer]
    angles = row[POSITIONS], row[ANGLES]
    return Heads(
        carray(pointer(row[COS], model.norm), angles),
        carray(pointer(row[SIN], model.norm), angles),
        query_norm,
        key_norm,
        model.numbers[layer, MIXER_EPS],
        carray(pointer(row[QUERY_SCALE], model.norm), (row[SCALED_POSITIONS],)),
        row[IS_INTERLEAVED] != 0,
        row[HAS_VALUE_NORM] != 0,
    )


@njit(inline="always")
def _floats(model: Model, layer: int, column: int, size: int) -> Array:
    return carray(pointer(model.table[layer, column], model.norm), (size,))


@njit(inline="always")
def attend_all(place: int, model: Model, paged: Paged, cache: Cache, query: Array, output: Array) -> None:
    """query [T, H, D] -> output [T, H, D]. place: among the layers that attend."""
    step = Step(query, paged.block_tables, output, paged.partial_sums, paged.partial_states)
    scores = Scores(paged.score_scales[place], paged.soft_caps[place], paged.windows[place], model.norm[:0])
    counter, workers = paged.counter, paged.workers
    if len(paged.decode_items):
        kernel, items, most = paged.decode_kernel, paged.decode_items, paged.decode_most
        attend(kernel, step, cache, items, counter, scores, most, workers)
    if len(paged.prefill_items):
        kernel, items, most = paged.prefill_kernel, paged.prefill_items, paged.prefill_most
        attend(kernel, step, cache, items, counter, scores, most, workers)
    if len(paged.merges):
        merge(step, paged.merges)


@njit
def take_gates(both: Array, size: int, qkv: Array, gates: Array) -> None:
    """both [T, ...], in which gates of `size` follow each query head -> qkv without them, and gates [T, H D]."""
    width, rest = gates.shape[1], both.shape[1] - 2 * gates.shape[1]
    for token in range(len(both)):
        row, target = token * both.shape[1], token * qkv.shape[1]
        for head in range(0, width, size):
            for at in range(0, size, LANES):
                store(qkv, target + head + at, load(both, row + 2 * head + at))
                store(gates, token * width + head + at, load(both, row + 2 * head + size + at))
        for at in range(0, rest, LANES):
            store(qkv, target + width + at, load(both, row + 2 * width + at))
