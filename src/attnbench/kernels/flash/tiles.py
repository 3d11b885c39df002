# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Building blocks of the flash kernels: bounds of a sequence, ranges of tiles, loads, the mask.

Query i of a sequence with Sq queries and Sk keys is aligned with key i + Sk - Sq; with shift = Sk - Sq

    query i sees key j    -left <= j - (i + shift) <= right

where each bound is compiled in only if there is one (HAS_LEFT, HAS_RIGHT); causal is right = 0.  The ranges below solve
the same rule for whole tiles: a tile that no row sees is not loaded, and a tile that every row sees is not masked.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.shared.rows import Reach, load_rows

BACKWARD_COUNTS = ("group", "heads", "heads_kv", "left", "members", "pairs", "right", "seqlen_k", "seqlen_q", "tiles")
"""Arguments whose values the code is not specialized for: another batch, length or window needs no recompilation."""


class Rows(NamedTuple):
    """The rows of a head of a sequence, from which `load_tile` loads tiles."""

    base: Any
    "pointer to the first row, from `first_row`"
    desc: Any
    "TMA descriptor of the tensor, if tiles are loaded by TMA"
    batch: Any
    "from `sequence`, like `start`, the first row"
    start: Any
    head: Any
    count: Any
    stride: Any
    "elements from one row to the next"


class Bounds(NamedTuple):
    """Place and length of a sequence."""

    batch: Any
    "index in the batch; 0 if packed"
    query_start: Any
    "first query in the packed tensors, int64; 0 if dense"
    key_start: Any
    queries: Any
    keys: Any


class Folded(NamedTuple):
    """Weights of a tile of scores, and the updated running softmax."""

    weights: Any
    factor: Any
    "factor by which the previous output and sums are rescaled"
    row_max: Any
    sums: Any


class Softmax(NamedTuple):
    """The running softmax of a tile of rows."""

    acc: Any
    "the output so far, not yet divided by the sums"
    row_max: Any
    sums: Any


@triton.jit
@no_type_check
def sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, number, PACKED: tl.constexpr):
    """The `Bounds` of the number-th sequence."""
    if PACKED:
        query_start = tl.load(cu_q_ptr + number)
        key_start = tl.load(cu_k_ptr + number)
        queries = tl.load(cu_q_ptr + number + 1) - query_start
        keys = tl.load(cu_k_ptr + number + 1) - key_start
        return Bounds(
            batch=number * 0,
            query_start=query_start.to(tl.int64),
            key_start=key_start.to(tl.int64),
            queries=queries,
            keys=keys,
        )
    none = tl.cast(number * 0, tl.int64)
    return Bounds(batch=number, query_start=none, key_start=none, queries=seqlen_q, keys=seqlen_k)


@triton.jit
@no_type_check
def first_row(ptr, batch, start, head, strides):
    """Pointer to the first row of a sequence's head, from the `Strides` of the tensor."""
    return ptr + tl.cast(batch, tl.int64) * strides.batch + start * strides.row + tl.cast(head, tl.int64) * strides.head


@triton.jit
@no_type_check
def sees(rows, columns, keys, shift, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """The mask of a tile, broadcast over rows and keys in either order; keys past the sequence's end are hidden."""
    see = columns < keys
    if HAS_RIGHT:
        see &= columns <= rows + (shift + right)
    if HAS_LEFT:
        see &= columns >= rows + (shift - left)
    return see


@triton.jit
@no_type_check
def keys_of_rows(first, last, keys, shift, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """The `Reach` of the rows [first, last] among the keys: which keys they see."""
    low = 0
    all_low = 0
    high = keys
    all_high = keys
    if HAS_RIGHT:
        high = tl.minimum(tl.maximum(last + (shift + right + 1), 0), keys)
        all_high = tl.minimum(tl.maximum(first + (shift + right + 1), 0), keys)
    if HAS_LEFT:
        low = tl.minimum(tl.maximum(first + (shift - left), 0), keys)
        all_low = tl.minimum(tl.maximum(last + (shift - left), 0), keys)
    return Reach(low=low, all_low=all_low, all_high=all_high, high=high)


@triton.jit
@no_type_check
def rows_of_keys(first, last, queries, shift, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """The `Reach` of the keys [first, last] among the rows: which rows see them."""
    low = 0
    all_low = 0
    high = queries
    all_high = queries
    if HAS_RIGHT:
        low = tl.minimum(tl.maximum(first - (shift + right), 0), queries)
        all_low = tl.minimum(tl.maximum(last - (shift + right), 0), queries)
    if HAS_LEFT:
        high = tl.minimum(tl.maximum(last - (shift - left) + 1, 0), queries)
        all_high = tl.minimum(tl.maximum(first - (shift - left) + 1, 0), queries)
    return Reach(low=low, all_low=all_low, all_high=all_high, high=high)


class TileRange(NamedTuple):
    """Tiles [begin, end) of a `Reach`: [begin, whole) and [split, end) are masked, [whole, split) need no mask."""

    begin: Any
    whole: Any
    split: Any
    end: Any


@triton.jit
@no_type_check
def tiles_of(reach, BLOCK: tl.constexpr):
    """The `TileRange` of a `Reach`, in tiles of BLOCK.

    A tile that only partly belongs to the range that all see is masked: all_high // BLOCK excludes it.
    """
    begin = reach.low // BLOCK
    end = tl.maximum((reach.high + BLOCK - 1) // BLOCK, begin)
    whole = tl.minimum((reach.all_low + BLOCK - 1) // BLOCK, end)
    split = tl.minimum(tl.maximum(reach.all_high // BLOCK, whole), end)
    return TileRange(begin=begin, whole=whole, split=split, end=end)


@triton.jit
@no_type_check
def masked_tile(index, tiles):
    """The index-th masked tile of a `TileRange`, which has whole - begin + end - split of them."""
    before = tiles.whole - tiles.begin
    return tl.where(index < before, tiles.begin + index, tiles.split + index - before)


@triton.jit
@no_type_check
def load_tile(
    rows, first, DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_DIM: tl.constexpr, WHOLE: tl.constexpr, TMA: tl.constexpr
):
    """A tile [BLOCK, BLOCK_DIM] of `Rows` from `first`; zeros from row `count` on and past the dims.

    WHOLE: all rows are before `count`, so no row is masked.  TMA: through the descriptor, which does not end at the end of
    a packed sequence; such a tile must be WHOLE.
    """
    if TMA:
        tile = rows.desc.load(
            [tl.cast(rows.batch, tl.int32), tl.cast(rows.start + first, tl.int32), tl.cast(rows.head, tl.int32), 0]
        )
        return tile.reshape(BLOCK, BLOCK_DIM)
    return load_rows(
        base=rows.base,
        first=first,
        count=rows.count,
        stride=rows.stride,
        DIM=DIM,
        BLOCK=BLOCK,
        BLOCK_DIM=BLOCK_DIM,
        WHOLE=WHOLE,
    )


@triton.jit
@no_type_check
def padded_start(number, query_start, queries, PACKED: tl.constexpr, PAD: tl.constexpr):
    """First row of a sequence where each begins at a multiple of PAD, with room for whole tiles (int64)."""
    if PACKED:
        # Tq + B PAD rows are enough: rounding up the end of a sequence takes fewer rows than the PAD that each sequence adds.
        return (query_start + tl.cast(number, tl.int64) * PAD) // PAD * PAD
    return tl.cast(number, tl.int64) * ((queries + PAD - 1) // PAD * PAD)
