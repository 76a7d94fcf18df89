"""The launches of the kernels beside this file: one layer's cache, one step's tensors."""

from typing import Final, NamedTuple

import torch
import triton

from loraplex.quant.kernels.cuda.card import find_card
from loraplex.quant.kernels.cuda.guard import require

from .attend import attend
from .keys import LOG2_E
from .tiles import (
    LEAST_SPLIT,
    LEAST_STORE_ROWS,
    PARTIAL_TOKENS,
    SEARCHED,
    STORE_PAIRS,
    WIDE_NUMBERS,
    Tile,
    bound_tiles,
    choose_tile,
    count_spare,
    count_splits,
    likely_sequences,
    pad_head,
)
from .write import rotate_and_write

FLOAT, INTEGER8, E4M3, E5M2, NATIVE_E4M3 = range(5)
"""As in stored.py."""
FORMATS: Final = {torch.int8: INTEGER8, torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}
LARGEST: Final = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
E4M3_WORTH: Final = 256.0
"""What a number that was widened from the bytes of float8_e4m3fn is multiplied by."""


class LayerCache(NamedTuple):
    key: torch.Tensor
    """[N, G, block size, D]; `value` alike."""
    value: torch.Tensor
    scales: torch.Tensor
    """[N, G, block size, 2] bfloat16, of a key and of its value; no elements where there are none"""
    static: torch.Tensor
    """[2, G] float32; no elements where there are none"""


class Head(NamedTuple):
    """What all heads of a layer have in common."""

    scale: float
    soft_cap: float
    """0: none; `window` alike."""
    window: int


class Partials(NamedTuple):
    """Room for partial results, tiles.partial_rows tokens of them."""

    sums: torch.Tensor
    """[rows, H, D] float32"""
    states: torch.Tensor
    """[rows, H, 2] float32, largest score and sum of weights"""
    arrivals: torch.Tensor
    """[PARTIAL_TOKENS, G] int32, programs that have left one; zeros between launches"""


class Turn(NamedTuple):
    """As in Rotary of backend.py."""

    cos: torch.Tensor | None = None
    sin: torch.Tensor | None = None
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None
    eps: float = 0.0
    interleaved: bool = False
    value_norm: bool = False
    query_scale: torch.Tensor | None = None


class OwnNorms(NamedTuple):
    """Weights of the heads' norms that tokens' adapters bring: slots [T] int32, -1 for none; floats, vectors and the
    kinds' places in its rows as PageTable has them."""

    slots: torch.Tensor
    floats: torch.Tensor
    vectors: torch.Tensor
    layer: int
    query_kind: int
    key_kind: int


class Plan(NamedTuple):
    """What a launch of `attend` takes from the shapes of a step."""

    tile: Tile
    tiles: int
    splits: int
    spare: int
    """As of count_spare: tiles are then sequences with as many more, and splits 1."""

    @property
    def cuts(self) -> int:
        """What keys are cut by; 0: no tile's are cut."""
        return self.spare or self.splits - 1


def attend_paged(
    output: torch.Tensor, query: torch.Tensor, layer: LayerCache, head: Head, partials: Partials,
    blocks: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, uneven: bool = False,
    sinks: torch.Tensor | None = None, mixed: bool = False,
) -> None:  # fmt: skip
    """query, output [T, H, D], contiguous; blocks [S, P], starts [S + 1], lengths [S], all int32, as in Batch, and so
    are `uneven` and `mixed`; sinks [H] float32.
    Rows of no sequence are left alone, those that see no key become zeros. Where T is S and `mixed` is not said, no
    sequence has more than one token.

    What a captured launch takes from the shapes holds for any lengths, and any starts within T. Runs of the same
    shapes and lengths give the same bits.
    """
    (tokens, heads, size), (sequences, width) = query.shape, blocks.shape
    _, kv_heads, block, _ = layer.key.shape
    is_packed = query.is_contiguous() and output.is_contiguous() and blocks.is_contiguous()
    require(is_packed and query.shape == output.shape, "queries, results and block tables must be contiguous")
    plan = plan_attend(layer, tokens, sequences, heads, width, uneven, mixed)
    tile, tiles, splits, spare = plan
    parts = tiles if spare else splits * tokens
    has_room = parts <= len(partials.sums) and tiles <= len(partials.arrivals)
    require(not plan.cuts or has_room, f"there is no room for {parts} partial results of {tiles} tiles")
    card = find_card(query.device)
    chained = card.can_chain
    stored = FORMATS.get(layer.key.dtype, FLOAT)
    if stored == E4M3 and card.has_float8:
        stored = NATIVE_E4M3
    worth = E4M3_WORTH if stored == E4M3 else 1.0
    key, value = (_bytes(part) if stored else part for part in (layer.key, layer.value))
    attend[tiles, kv_heads, splits](
        output, *partials, query, key, value, layer.scales.view(torch.uint32), layer.static,
        layer.static if sinks is None else sinks, blocks, starts, lengths, sequences, tokens, width, spare,
        head.scale * worth * (1.0 if head.soft_cap else LOG2_E.value), head.soft_cap, CAPPED=head.soft_cap > 0,
        FORMAT=stored, WORTH=worth, SCALED=layer.scales.numel() > 0, STATIC=layer.static.numel() > 0,
        KV_HEADS=kv_heads, GROUP=heads // kv_heads, BLOCK=block, ROWS=tile.rows, STAGES=tile.stages,
        WIDE=layer.key.numel() >= WIDE_NUMBERS, AHEAD=tile.ahead, OWN_KEYS=tile.own_keys, SINKS=sinks is not None,
        CUT=plan.cuts > 0, WINDOW=head.window, SIZE=size, PADDED=pad_head(size), KEYS=tile.keys, SEARCHED=SEARCHED,
        LEAST_SPLIT=LEAST_SPLIT, SHARED=spare > 0, CHAINED=chained, num_warps=tile.warps, num_stages=tile.stages,
        enable_fp_fusion=True,
        maxnreg=tile.static_registers if layer.static.numel() else tile.registers, launch_pdl=chained,
    )  # fmt: skip


def plan_attend(
    layer: LayerCache, tokens: int, sequences: int, heads: int, width: int, uneven: bool = False, mixed: bool = False
) -> Plan:  # fmt: skip
    """For steps of these shapes with tables of `width` blocks."""
    _, kv_heads, block, size = layer.key.shape
    card = find_card(layer.key.device)
    likely = likely_sequences(tokens, sequences, mixed)
    tile = choose_tile(tokens, likely, heads, kv_heads, size, layer.key.itemsize, block, card)
    queries = tile.rows // (heads // kv_heads)
    if tokens == sequences and not mixed:
        spare = count_spare(sequences, kv_heads, width * block, uneven, card)
        return Plan(tile, sequences + spare if spare else bound_tiles(tokens, sequences, queries), 1, spare)
    tiles = bound_tiles(tokens, sequences, queries)
    splits = count_splits(tokens, sequences, tiles * kv_heads, width * block, card)
    return Plan(tile, tiles, splits if tiles <= PARTIAL_TOKENS else 1, 0)


def write_heads(
    query: torch.Tensor, heads: torch.Tensor, layer: LayerCache, turn: Turn, positions: torch.Tensor,
    slots: torch.Tensor, clipped: torch.Tensor | None, own: OwnNorms | None = None,
) -> None:  # fmt: skip
    """heads [T, H + 2 G, D], contiguous: the first H to query [T, H, D], keys and values to slots [T] of the cache; or
    [T, H, D], of a layer that stores none. clipped [T] int64 with static scales: how many numbers of a token they clip,
    NOT_FINITE of write.py where one is not finite. A token whose slot is negative is not written and clips nothing."""
    tokens, query_heads, size = query.shape
    kv_heads, block = (heads.shape[1] - query_heads) // 2, layer.key.shape[2]
    is_packed = heads.is_contiguous() and query.is_contiguous() and size % 2 == 0
    require(is_packed and kv_heads in (0, layer.key.shape[1]), "heads must be contiguous and those of the cache")
    rows = max(LEAST_STORE_ROWS, triton.next_power_of_2(2 * kv_heads)) if kv_heads else LEAST_STORE_ROWS
    lanes = triton.next_power_of_2(size // 2)
    stored, chained = FORMATS.get(layer.key.dtype, FLOAT), find_card(query.device).can_chain
    key, value = (_bytes(part) if stored else part for part in (layer.key, layer.value))
    norm, none = turn.query_norm if kv_heads == 0 else turn.key_norm, layer.static
    is_whole = norm is not None and len(norm) > size
    tensors = turn.cos, turn.sin, turn.query_norm, turn.key_norm, turn.query_scale
    adapters, floats, vectors, number, query_kind, key_kind = own or (none, none, none, 0, 0, 0)
    if tokens:
        rotate_and_write[tokens, (kv_heads > 0) + -(-query_heads // rows)](
            query, heads, key, value, layer.scales, layer.static, none if clipped is None else clipped, positions,
            slots, *(none if tensor is None else tensor for tensor in tensors), adapters, floats, vectors, number,
            HEADS=query_heads, KV_HEADS=kv_heads, SIZE=size, BLOCK=block, ROWS=rows, LANES=lanes,
            TURNED=0 if turn.cos is None else 2 * turn.cos.shape[1], PAIRS=turn.interleaved, NORMED=norm is not None,
            WHOLE=is_whole, VALUE_NORM=turn.value_norm, SCALED=turn.query_scale is not None, EPS=turn.eps,
            FORMAT=stored,
            LARGEST=LARGEST.get(layer.key.dtype, 0.0), STATIC=layer.static.numel() > 0,
            OWN=own is not None, TABLE_KINDS=vectors.shape[-1], QUERY_KIND=query_kind, KEY_KIND=key_kind,
            CHAINED=chained, launch_pdl=chained,
            num_warps=min(16, max(1, rows * lanes // STORE_PAIRS)), enable_fp_fusion=True,
        )  # fmt: skip


def _bytes(part: torch.Tensor) -> torch.Tensor:
    return part.view(torch.uint8)
