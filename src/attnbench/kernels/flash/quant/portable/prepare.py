# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Quantisation of 16-bit tensors in one launch: mean of K and largest |V|, then Q, K and V in 8 bits.

Programs are small and of five kinds.  Statistics of K and of V: each program takes a stretch of a head's rows, of K those
of a sample, and the last program of a head combines the stretches.  Quantisation: each program takes 8192 elements of q, k
or v and waits for the statistics it needs of its head.  Programs are ordered by head, with the statistics some heads ahead,
so that V is still in the L2 when it is read the second time.  Programs start in the order of their ids and those for
statistics wait for nothing, so a waiting program always waits for programs that are running.

Address arithmetic is kept small relative to the work per element: divisions multiply by a precomputed reciprocal, K and V
share their addresses, and each half of a register with two bf16 values is converted by one instruction.

Q has one scale per row.  K has four scales per tile: one for the keys n with the same (n % 8) // 2, which are those that
one thread holds of a tensor core result, so that a thread needs one scale per tile.  V has one scale per channel.  The
e4m3 values are transposed because 8-bit products need the summed dimension innermost in both operands, and their keys are
in the order in which a thread's weights form an operand without exchange between threads (`key_of`).
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.flash.quant.portable.channels import (
    gather_largest,
    gather_sums,
    largest_of,
    scale_of,
    stratum_of,
    sum_of,
    widened,
)
from attnbench.kernels.flash.tiles import first_row, sequence

TILE = tl.constexpr(128)
"Keys of a tile, which has scales of its own."
Q_PAD = tl.constexpr(64)
"Queries of a sequence begin at a multiple of this."
NUMBERS = tl.constexpr(8192)
"Elements of a program that quantises."
SPAN = tl.constexpr(16)
"Channels of a row of K or Q that a thread holds."
WIDTH = tl.constexpr(64)
"Channels of V that a quantising program takes."
INT8 = tl.constexpr(127.0)
LEAST_OF_Q = tl.constexpr(2.0**-80)
"""Lower bound of a row's scale times the problem's: its product with the smallest key scale stays above 0, because -∞ of
a hidden score times 0 would be NaN."""
ROUND = tl.constexpr(12582912.0)
"1.5 · 2²³: after adding it, the nearest integer is in the last bits."
NEVER = tl.constexpr(-(2**31))
"Below every value of a counter, so a wait for it ends at once."
COUNTS = (
    *("seqlen_q", "seqlen_k", "rows_q", "rows_k", "pairs", "chunk", "stretches_k", "stretches_v", "ahead"),
    *("heads_kv", "by_heads_kv", "repeats", "by_repeats", "share", "by_share"),
)
"Arguments whose values the code is not specialized for."

_Each = TypeVar("_Each")


class Inputs(NamedTuple, Generic[_Each]):
    """The tensors that are quantised, or their strides."""

    q: _Each
    k: _Each
    v: _Each


class Statistics(NamedTuple):
    """Pointers to the tensors of `prepare.Quantised` that only the preparation uses."""

    parts: Any
    found: Any
    arrived: Any


class PrepareMeta(NamedTuple):
    """Compile-time constants of `quantise`."""

    DIM: int
    COLUMNS: int
    PACKED: bool
    CHUNKS: int


@triton.jit
@no_type_check
def divided(number, by, inverse):
    """Quotient and remainder by the reciprocal of `prepare.inverse_of`; the product is at most 1 too small."""
    quotient = tl.umulhi(2 * number.to(tl.uint32), inverse.to(tl.uint32)).to(tl.int32)
    rest = number - quotient * by
    more = (rest >= by).to(tl.int32)
    return quotient + more, rest - more * by


@triton.jit
@no_type_check
def tiles_of(rows, SIZE: tl.constexpr):
    """Number of tiles, of a power of two rows each, that cover the rows."""
    return ((rows + SIZE - 1).to(tl.uint32) // SIZE).to(tl.int32)


@triton.jit
@no_type_check
def largest_sizes(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Largest |x| of each SPAN columns of a row, or NaN, as bits, which order like the numbers with NaN largest.

    A thread holds all columns of a span, so that only the results are exchanged between threads.
    """
    x = tl.abs(x)
    for halving in tl.static_range(4):  # a span is 2⁴
        one, other = tl.split(x.reshape([ROWS, COLUMNS >> (halving + 1), 2]))
        x = tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)
    return x.to(tl.int32, bitcast=True)


@triton.jit
@no_type_check
def whole(x):
    """Nearest integer of x, |x| < 128."""
    return (x + ROUND).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
@no_type_check
def key_of(place):
    """Key whose values are at a place of a tile: among 16 keys, pairs from the first and second eight alternate."""
    return place // 16 * 16 + (place // 2 % 2) * 8 + place % 16 // 4 * 2 + place % 2


@triton.jit
@no_type_check
def wait_for(counter_ptr, ready):
    """Wait until a counter reaches a value; afterwards the whole program sees what was written before."""
    while tl.atomic_add(counter_ptr, 0, sem="acquire") < ready:
        pass
    tl.debug_barrier()


@triton.jit
@no_type_check
def quantise_k(
    base, k8_ptr, scale_ptr, mean_ptr, counter_ptr, ready, part, keys, stride, DIM: tl.constexpr, COLUMNS: tl.constexpr
):
    """Quantise the keys of a tile that belong to a part of its scales; `keys`: keys from the tile's start on."""
    PARTS: tl.constexpr = COLUMNS // WIDTH
    SCALES: tl.constexpr = 4 // PARTS
    ROWS: tl.constexpr = TILE // PARTS
    at = tl.arange(0, ROWS)
    at = at // (2 * SCALES) * 8 + part * (2 * SCALES) + at % (2 * SCALES)
    columns = tl.arange(0, COLUMNS)
    there = at < keys
    mask = there[:, None]
    if DIM != COLUMNS:
        mask = mask & (columns < DIM)[None, :]
    k_at = (base + at * stride)[:, None] + columns[None, :]
    k = tl.load(k_at, mask=mask, other=0.0, eviction_policy="evict_first")
    wait_for(counter_ptr, ready)
    k = widened(k) - tl.load(mean_ptr + columns)[None, :]
    # Missing keys would be minus the mean: they are excluded from the scale and become 0.
    sizes = tl.where(there[:, None], largest_sizes(k, ROWS, COLUMNS), 0)
    sizes = tl.max(sizes.reshape([2, ROWS // 2, COLUMNS // SPAN]), 0)
    sizes = tl.max(sizes, 1).reshape([TILE // 16, SCALES, 2])
    scale, inverse = scale_of(tl.max(tl.max(sizes, 2), 0), INT8)
    inverses = tl.broadcast_to(inverse[None, :, None], [TILE // 8, SCALES, 2]).reshape([ROWS])
    inverses = tl.where(there, inverses, 0.0)
    tl.store(scale_ptr + part * SCALES + tl.arange(0, SCALES), scale)
    tl.store((k8_ptr + at * COLUMNS)[:, None] + columns[None, :], whole(k * inverses[:, None]))


@triton.jit
@no_type_check
def quantise_v(base, v8_ptr, inverse_ptr, counter_ptr, ready, part, keys, stride, DIM: tl.constexpr):
    """Quantise WIDTH channels of a tile of values, transposed through shared memory as 16-bit pairs of keys."""
    columns = part * WIDTH + tl.arange(0, WIDTH)
    pairs = tl.arange(0, TILE // 2)
    key = key_of(2 * pairs)
    at = (base + key * stride)[:, None] + columns[None, :]
    one_there = (key < keys)[:, None]
    other_there = (key + 1 < keys)[:, None]
    if DIM // WIDTH * WIDTH != DIM:
        one_there = one_there & (columns < DIM)[None, :]
        other_there = other_there & (columns < DIM)[None, :]
    one = tl.load(at, mask=one_there, other=0.0, eviction_policy="evict_first")
    other = tl.load(at + stride, mask=other_there, other=0.0, eviction_policy="evict_first")
    wait_for(counter_ptr, ready)
    inverse = tl.load(inverse_ptr + columns)[None, :]
    v8 = tl.join(widened(one) * inverse, widened(other) * inverse).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    one8, other8 = tl.split(v8)
    both = one8.to(tl.uint16) | (other8.to(tl.uint16) << 8)
    v8_at = (v8_ptr.to(tl.pointer_type(tl.uint16)) + columns * (TILE // 2))[:, None] + pairs[None, :]
    tl.store(v8_at, both.trans(1, 0))


@triton.jit
@no_type_check
def quantise_q(
    base,
    q8_ptr,
    scale_ptr,
    shift_ptr,
    mean_ptr,
    counter_ptr,
    ready,
    queries,
    stride,
    softmax_scale,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Quantise rows of Q; also store each row's product with the mean of K, by which lse is corrected."""
    ROWS: tl.constexpr = NUMBERS // COLUMNS
    at = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    mask = (at < queries)[:, None]
    if DIM != COLUMNS:
        mask = mask & (columns < DIM)[None, :]
    q_at = (base + at * stride)[:, None] + columns[None, :]
    q = tl.load(q_at, mask=mask, other=0.0, eviction_policy="evict_first")
    wait_for(counter_ptr, ready)
    q = widened(q)
    shift = tl.sum(q * tl.load(mean_ptr + columns)[None, :], 1) * softmax_scale
    scale, inverse = scale_of(tl.max(largest_sizes(q, ROWS, COLUMNS), 1), INT8)
    scale *= softmax_scale
    padded = at < tiles_of(queries, Q_PAD) * Q_PAD
    tl.store(shift_ptr + at, shift, mask=padded)
    tl.store(scale_ptr + at, tl.where(scale < LEAST_OF_Q, LEAST_OF_Q, scale), mask=padded)
    tl.store((q8_ptr + at * COLUMNS)[:, None] + columns[None, :], whole(q * inverse[:, None]), mask=padded[:, None])


@triton.jit
@no_type_check
def padded_tile(number, start, rows, PACKED: tl.constexpr, PAD: tl.constexpr):
    """`padded_start` divided by PAD: the first tile of a sequence among its head's tiles."""
    if PACKED:
        return (start // PAD).to(tl.int32) + number
    return number * tiles_of(rows, PAD)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def quantise(
    inputs,
    statistics,
    made,
    cu_q_ptr,
    cu_k_ptr,
    seqlen_q,
    seqlen_k,
    strides,
    scale,
    rows_q,
    rows_k,
    pairs,
    chunk,
    stretches_k,
    stretches_v,
    ahead,
    heads_kv,
    by_heads_kv,
    repeats,
    by_repeats,
    share,
    by_share,
    META: tl.constexpr,
):
    """One program's work; the launch writes every row of the quantised tensors that a kernel reads.

    A head has `stretches_k` programs for the statistics of K and then `stretches_v` for those of V; none in a launch that
    only quantises.  Program ids begin with the statistics of the first `ahead` heads.  Then each head has a `share` of ids:
    the statistics of the head that is `ahead` of it, if there is one, and its own quantisation.
    """
    COLUMNS: tl.constexpr = META.COLUMNS
    PARTS: tl.constexpr = COLUMNS // WIDTH
    ROWS: tl.constexpr = NUMBERS // COLUMNS
    stretches = stretches_k + stretches_v
    begun = ahead * stretches
    index = tl.program_id(0)
    counts = index < begun
    if counts:
        pair = index // stretches
        index -= pair * stretches
    else:
        pair, index = divided(index - begun, share, by_share)
        later = tl.where(ahead < pairs, stretches, 0)
        counts = index < later
        pair += tl.where(counts, ahead, 0)
        index -= tl.where(counts, 0, later)
    if pair < pairs:
        batch_of, head = divided(pair, heads_kv, by_heads_kv)
        bounds = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, batch_of, META.PACKED)
        batch, queries, keys = bounds.batch, bounds.queries, bounds.keys
        of_k_or_v = 2 * PARTS * tiles_of(seqlen_k, TILE)
        of_q = (index >= of_k_or_v) & (not counts)
        # Statistics of K, then of V; tiles of both in turn; Q depends on K's statistics.
        of_k = of_q | tl.where(counts, index < stretches_k, index & 1 == 0)
        stratum = tl.where(of_k, stratum_of(keys), 0)
        rows = keys >> stratum
        count = tl.where(of_k, stretches_k, stretches_v)
        if META.PACKED:
            count = tl.maximum((rows + chunk - 1) // chunk, 1)  # a sequence without keys still has one stretch
        # A launch without statistics does not wait, whatever the counters hold.
        ready = tl.where(stretches > 0, count + 1, NEVER)
        if not of_q:
            row = tl.where(of_k, strides.k.row, strides.v.row)
            base = tl.where(of_k, inputs.k, inputs.v)
            before = tl.cast(batch, tl.int64) * tl.where(of_k, strides.k.batch, strides.v.batch)
            before += tl.cast(head, tl.int64) * tl.where(of_k, strides.k.head, strides.v.head)
            place = pair + tl.where(of_k, 0, pairs)
            arrived, found = statistics.arrived + place, statistics.found + tl.cast(place, tl.int64) * COLUMNS
            if counts:
                index -= tl.where(of_k, 0, stretches_k)
                if index < count:
                    start = index * chunk
                    end = tl.minimum(start + chunk, rows)
                    parts = statistics.parts + (tl.cast(place, tl.int64) * stretches_v) * COLUMNS
                    base += before + bounds.key_start * row
                    if of_k:
                        sums = sum_of(base, start, end, row, stratum, META.DIM, COLUMNS)
                        gather_sums(
                            sums=sums,
                            parts_ptr=parts,
                            found_ptr=found,
                            counter_ptr=arrived,
                            part=index,
                            count=count,
                            rows=rows,
                            COLUMNS=COLUMNS,
                            CHUNKS=META.CHUNKS,
                        )
                    else:
                        most = largest_of(base, start, end, row, META.DIM, COLUMNS)
                        v_scale = made.v_scale + tl.cast(pair, tl.int64) * COLUMNS
                        gather_largest(
                            most=most,
                            parts_ptr=parts,
                            found_ptr=found,
                            scale_ptr=v_scale,
                            counter_ptr=arrived,
                            part=index,
                            count=count,
                            COLUMNS=COLUMNS,
                            CHUNKS=META.CHUNKS,
                        )
            else:
                index >>= 1
                part = index & (PARTS - 1)
                tile = index // PARTS
                first = tile * TILE
                if first < keys:
                    tile += head * tiles_of(rows_k, TILE) + padded_tile(
                        batch_of, bounds.key_start, keys, META.PACKED, TILE
                    )
                    base += before + (bounds.key_start + first) * row
                    there = keys - first
                    at = tl.cast(tile, tl.int64) * (TILE * COLUMNS)
                    if of_k:
                        k_scale = made.k_scale + tl.cast(tile, tl.int64) * 4
                        quantise_k(
                            base=base,
                            k8_ptr=made.k + at,
                            scale_ptr=k_scale,
                            mean_ptr=found,
                            counter_ptr=arrived,
                            ready=ready,
                            part=part,
                            keys=there,
                            stride=row,
                            DIM=META.DIM,
                            COLUMNS=COLUMNS,
                        )
                    else:
                        quantise_v(
                            base=base,
                            v8_ptr=made.v + at,
                            inverse_ptr=found,
                            counter_ptr=arrived,
                            ready=ready,
                            part=part,
                            keys=there,
                            stride=row,
                            DIM=META.DIM,
                        )
        else:
            tile, reader = divided(index - of_k_or_v, repeats, by_repeats)
            reader += head * repeats
            first = tile * ROWS
            if first < queries:
                base = first_row(inputs.q, batch, bounds.query_start + first, reader, strides.q)
                tile = reader * tiles_of(rows_q, Q_PAD) + tile * (ROWS // Q_PAD)
                tile += padded_tile(batch_of, bounds.query_start, queries, META.PACKED, Q_PAD)
                at = tl.cast(tile, tl.int64) * Q_PAD
                quantise_q(
                    base=base,
                    q8_ptr=made.q + at * COLUMNS,
                    scale_ptr=made.q_scale + at,
                    shift_ptr=made.q_shift + at,
                    mean_ptr=statistics.found + tl.cast(pair, tl.int64) * COLUMNS,
                    counter_ptr=statistics.arrived + pair,
                    ready=ready,
                    queries=queries - first,
                    stride=strides.q.row,
                    softmax_scale=scale,
                    DIM=META.DIM,
                    COLUMNS=COLUMNS,
                )
