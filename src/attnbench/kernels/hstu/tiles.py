# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Building blocks of the dense HSTU kernels: bounds of a sequence, ranges of tiles, unmasked loads, the mask, SiLU.

A sequence of n keys is ``[prefix | history | targets]``: C prefix rows, `seen` = n - T rows before the T
targets.  Rows and keys are numbered from the sequence's first key; its queries are its last rows.  The window W
compares positions p: all prefix rows have one position, and all targets have one.

    row i sees key j    (j < seen or j = i) and (j <= i or i < C, if causal)
                        and (p(i) - p(j) <= W [and p(j) - p(i) <= W, if not causal] or i < C, if windowed)

The ranges below solve the same rule for whole tiles: a tile that no row sees is not loaded, and a tile that every row
sees is not masked.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.shared.rows import Reach, load_rows

COUNTS = ("contextual_len", "group", "heads", "pairs", "parts", "rows", "tiles", "window")
"""Arguments whose values the code is not specialized for: another batch, length or prefix needs no recompilation, except
that the grid of more work items than SMs has a dynamic tile scheduler."""


class Bounds(NamedTuple):
    """Place and parts of a sequence."""

    key_start: Any
    "first key in the packed tensors, int64"
    query_start: Any
    "first query in the packed tensors, int64"
    keys: Any
    first_query: Any
    "position of query 0"
    prefix: Any
    "number of prefix rows"
    seen: Any
    "number of rows before the targets"


@triton.jit
@no_type_check
def sequence(
    sequences, number, contextual_len, HAS_PREFIX: tl.constexpr, HAS_TARGETS: tl.constexpr, HAS_CACHE: tl.constexpr
):
    """The `Bounds` of the number-th of `Sequences`."""
    key_start = tl.load(sequences.offsets_ptr + number).to(tl.int64)
    keys = (tl.load(sequences.offsets_ptr + number + 1) - key_start).to(tl.int32)
    query_start = key_start
    first_query = 0
    if HAS_CACHE:
        query_start = tl.load(sequences.offsets_q_ptr + number).to(tl.int64)
        first_query = keys - (tl.load(sequences.offsets_q_ptr + number + 1) - query_start).to(tl.int32)
    seen = keys
    if HAS_TARGETS:
        seen = keys - tl.load(sequences.num_targets_ptr + number).to(tl.int32)
    prefix = 0
    if HAS_PREFIX:
        prefix = tl.minimum(contextual_len, seen)
    return Bounds(
        key_start=key_start, query_start=query_start, keys=keys, first_query=first_query, prefix=prefix, seen=seen
    )


@triton.jit
@no_type_check
def place(position, prefix, seen, HAS_PREFIX: tl.constexpr):
    """Position of a row for the window; only differences matter."""
    position = tl.minimum(position, seen)
    if HAS_PREFIX:
        position = tl.maximum(position, prefix - 1)
    return position


@triton.jit
@no_type_check
def sees(
    rows,
    keys,
    prefix,
    seen,
    window,
    CAUSAL: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """The mask of a tile, broadcast over rows and keys in either order."""
    see = keys < seen
    if HAS_TARGETS:
        see |= keys == rows
    near = keys == keys
    if CAUSAL:
        near = keys <= rows
    if HAS_WINDOW:
        ahead = place(keys, prefix, seen, HAS_PREFIX) - place(rows, prefix, seen, HAS_PREFIX)
        near &= ahead >= -window
        if not CAUSAL:
            near &= ahead <= window
    if HAS_PREFIX:
        near |= rows < prefix
    return see & near


@triton.jit
@no_type_check
def keys_of_rows(
    first, last, prefix, seen, window, CAUSAL: tl.constexpr, HAS_PREFIX: tl.constexpr, HAS_WINDOW: tl.constexpr
):
    """The `Reach` of the rows [first, last] among the keys before the targets: which keys they see."""
    low = 0
    all_low = 0
    high = seen
    all_high = seen
    if CAUSAL:
        high = tl.minimum(last + 1, seen)
        all_high = tl.minimum(first + 1, seen)
    if HAS_WINDOW:
        low = tl.minimum(first, seen) - window
        low = tl.where(low < prefix, 0, low)
        all_low = tl.minimum(last, seen) - window
        all_low = tl.where(all_low < prefix, 0, all_low)
        if not CAUSAL:
            high = tl.minimum(seen, last + window + 1)
            all_high = tl.minimum(seen, first + window + 1)
    if HAS_PREFIX:
        mixed = first < prefix
        low = tl.where(mixed, 0, low)
        high = tl.where(mixed, seen, high)
        if CAUSAL or HAS_WINDOW:
            # The first row after the prefix sees at least itself.
            all_high = tl.where(mixed, prefix + 1, all_high)
        whole = last < prefix
        all_low = tl.where(whole, 0, all_low)
        all_high = tl.where(whole, seen, tl.minimum(all_high, seen))
    return Reach(low=low, all_low=all_low, all_high=all_high, high=high)


@triton.jit
@no_type_check
def rows_of_keys(
    first,
    last,
    rows,
    prefix,
    seen,
    window,
    CAUSAL: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """The `Reach` of the keys [first, last] among the rows after the prefix: which rows see them."""
    low = 0
    all_low = 0
    high = rows
    all_high = rows
    if CAUSAL:
        low = first
        all_low = last
    if HAS_WINDOW:
        # Keys of the prefix have the position of its last one.
        near = tl.maximum(tl.minimum(last, seen - 1), prefix - 1) + window
        high = tl.where(near >= seen, rows, near + 1)
        near = tl.maximum(first, prefix - 1) + window
        all_high = tl.where(near >= seen, rows, near + 1)
        if not CAUSAL:
            low = tl.where(first < prefix, 0, tl.maximum(first - window, 0))
            all_low = tl.where(last < prefix, 0, tl.maximum(last - window, 0))
    if HAS_TARGETS:
        # Only a target itself sees it; a range of both kinds of keys has no row that sees all of them.
        target = first >= seen
        low = tl.where(target, first, low)
        high = tl.where(target, tl.minimum(last + 1, rows), tl.maximum(high, tl.where(last >= seen, last + 1, 0)))
        all_high = tl.where(last >= seen, all_low, all_high)
    return Reach(low=low, all_low=all_low, all_high=tl.minimum(all_high, rows), high=tl.minimum(high, rows))


class KeyTiles(NamedTuple):
    """Key tiles that a range of rows sees, counted from key 0.

    [begin, whole), [split, end) and, for the rows' own targets, tiles from `own` on are masked; every row sees all keys of
    [whole, split).
    """

    begin: Any
    whole: Any
    split: Any
    end: Any
    own: Any
    masked: Any
    "number of masked tiles"


@triton.jit
@no_type_check
def tiles_of_rows(
    first,
    last,
    prefix,
    seen,
    window,
    CAUSAL: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The `KeyTiles` of the rows [first, last]."""
    reach = keys_of_rows(
        first=first,
        last=last,
        prefix=prefix,
        seen=seen,
        window=window,
        CAUSAL=CAUSAL,
        HAS_PREFIX=HAS_PREFIX,
        HAS_WINDOW=HAS_WINDOW,
    )
    begin = reach.low // BLOCK_N
    end = (reach.high + BLOCK_N - 1) // BLOCK_N
    whole = tl.minimum((reach.all_low + BLOCK_N - 1) // BLOCK_N, end)
    split = tl.minimum(tl.maximum(reach.all_high // BLOCK_N, whole), end)
    count = whole - begin + end - split
    own = end
    if HAS_TARGETS:
        # The tile in which the history ends is one of those above, including the targets in it.
        own = tl.maximum(tl.maximum(first, seen) // BLOCK_N, end)
        count += tl.maximum(tl.where(last >= seen, last // BLOCK_N + 1 - own, 0), 0)
    return KeyTiles(begin=begin, whole=whole, split=split, end=end, own=own, masked=count)


@triton.jit
@no_type_check
def masked_tile(index, tiles, HAS_TARGETS: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """The index-th masked tile of `KeyTiles`."""
    before = tiles.whole - tiles.begin
    tile = tiles.split + index - before
    if HAS_WINDOW:
        tile = tl.where(index < before, tiles.begin + index, tile)
    if HAS_TARGETS:
        behind = before + tiles.end - tiles.split
        tile = tl.where(index < behind, tile, tiles.own + index - behind)
    return tile


class Rows(NamedTuple):
    """The rows of a head of a sequence, from which `load_whole` loads tiles."""

    base: Any
    "pointer to the first row"
    desc: Any
    "TMA descriptor of the tensor, if tiles are loaded by TMA"
    start: Any
    "first row in the packed tensor"
    head: Any
    stride: Any
    "elements from one row to the next"


@triton.jit
@no_type_check
def load_whole(rows, first, DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_DIM: tl.constexpr, TMA: tl.constexpr):
    """A tile of `Rows` of which all rows belong to the sequence."""
    if TMA:
        tile = rows.desc.load([tl.cast(rows.start + first, tl.int32), tl.cast(rows.head, tl.int32), 0])
        return tile.reshape(BLOCK, BLOCK_DIM)
    return load_rows(
        rows.base, first, count=0, stride=rows.stride, DIM=DIM, BLOCK=BLOCK, BLOCK_DIM=BLOCK_DIM, WHOLE=True
    )


@triton.jit
@no_type_check
def half_tanh(half, APPROXIMATE: tl.constexpr):
    """tanh(half): by one instruction of NVIDIA cards (error 2⁻¹¹), or by an exponential."""
    if APPROXIMATE:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [half], dtype=tl.float32, is_pure=True, pack=1
        )
    return 2.0 / (1.0 + tl.exp(-2.0 * half)) - 1.0


@triton.jit
@no_type_check
def silu(scores, half_alpha, APPROXIMATE: tl.constexpr):
    """SiLU(α s) = h + h tanh(h) with h = α s / 2; by exponential x / (1 + e⁻ˣ), exact for large -x too."""
    half = scores * half_alpha
    if APPROXIMATE:
        return half * half_tanh(half, APPROXIMATE) + half
    return 2.0 * half / (1.0 + tl.exp(-2.0 * half))


@triton.jit
@no_type_check
def silu_and_slope(scores, half_alpha, APPROXIMATE: tl.constexpr):
    """SiLU(x) of x = α s, and twice its slope σ(x)(1 + x(1 - σ(x))): u + u w, u = 1 + tanh(h), w = h(1 - tanh(h))."""
    half = scores * half_alpha
    if APPROXIMATE:
        bend = half_tanh(half, APPROXIMATE)
        value = half * bend + half
        rest = half - half * bend
        twice = 1.0 + bend
        return value, twice * rest + twice
    sigmoid = 1.0 / (1.0 + tl.exp(-2.0 * half))
    value = 2.0 * half * sigmoid
    return value, 2.0 * sigmoid * (1.0 + 2.0 * half - value)


SUMS_ROWS = tl.constexpr(64)
"Rows of a tile of sums of dQ."


@triton.jit
@no_type_check
def first_sum(number, query_start):
    """First row of a sequence in sums of dQ in tiles, where each sequence begins at a whole tile (int64).

    Tq rows and a tile for each sequence are enough: rounding up the end of a sequence takes fewer rows than that tile has.
    """
    return (query_start + tl.cast(number, tl.int64) * SUMS_ROWS) // SUMS_ROWS * SUMS_ROWS
