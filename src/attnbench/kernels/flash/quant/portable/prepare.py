# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""What the forward needs of 16-bit tensors, in one launch: mean of K and largest |V|, then all three quantised.

Programs are small and of five kinds.  Those of K's and V's statistics take a stretch of a head's rows each, and the last
of a head to arrive puts the stretches together; those that quantise take 8192 numbers of q, k or v and wait for what
they need of the head.  They come head by head, the statistics some heads ahead: K and V are still in the L2 when they are
read for the second time.  Programs begin in the order of their numbers and statistics wait for nobody, so whoever waits
is waiting for programs that run.

A program issues few instructions and most of them for a number: what it divides by comes with an inverse, K and V share
the arithmetic of addresses, and both halves of a register with two numbers of bf16 are widened by one instruction each.

Rows of Q have a scale each.  K has four scales a tile: one for the keys n of the same (n % 8) // 2, which one thread of a
tensor core's result holds, so that they cost it a number a tile.  V has one a channel.  e4m3 is transposed because 8-bit
products want both operands with the summed dim innermost, and its keys stand in the order in which a thread's weights
become an operand without an exchange (`key_of`).
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
    sum_of,
    widened,
)
from attnbench.kernels.flash.tiles import first_row, sequence

TILE = tl.constexpr(128)
"Keys that have scales of their own."
Q_PAD = tl.constexpr(64)
"Queries of a sequence begin at a multiple of this."
NUMBERS = tl.constexpr(8192)
"Of a program that quantises."
SPAN = tl.constexpr(16)
"Channels of a row of K or Q that a thread has."
WIDTH = tl.constexpr(64)
"Channels of V of such a program."
INT8 = tl.constexpr(127.0)
LEAST_OF_Q = tl.constexpr(2.0**-80)
"Of a row's scale times the problem's: times the least of a key's it is over 0, as a hidden score's -∞ needs it to be."
ROUND = tl.constexpr(12582912.0)
"1.5 · 2²³: a sum with it has the nearest whole number in its last bits."
NEVER = tl.constexpr(-(2**31))
"Fewer than any counter says."
COUNTS = (
    *("seqlen_q", "seqlen_k", "rows_q", "rows_k", "pairs", "chunk", "stretches", "ahead"),
    *("heads_kv", "by_heads_kv", "repeats", "by_repeats", "share", "by_share"),
)
"Numbers of a call that no code is compiled anew for."

_Each = TypeVar("_Each")


class Inputs(NamedTuple, Generic[_Each]):
    """What is quantised, or its strides."""

    q: _Each
    k: _Each
    v: _Each


class Statistics(NamedTuple):
    """Pointers to `prepare.Quantised` that only the preparation works with."""

    parts: Any
    found: Any
    arrived: Any


class PrepareMeta(NamedTuple):
    """What `quantise` is compiled for."""

    DIM: int
    COLUMNS: int
    PACKED: bool
    CHUNKS: int


@triton.jit
@no_type_check
def divided(number, by, inverse):
    """Quotient and rest of a number by another, of which there is `prepare.inverse_of`: a product, at most 1 too small."""
    quotient = tl.umulhi(2 * number.to(tl.uint32), inverse.to(tl.uint32)).to(tl.int32)
    rest = number - quotient * by
    more = (rest >= by).to(tl.int32)
    return quotient + more, rest - more * by


@triton.jit
@no_type_check
def tiles_of(rows, SIZE: tl.constexpr):
    """Tiles of a power of two that some rows take."""
    return ((rows + SIZE - 1).to(tl.uint32) // SIZE).to(tl.int32)


@triton.jit
@no_type_check
def largest_sizes(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Of each SPAN columns of a row the largest |x|, or NaN, as bits: they order as numbers do, with NaN on top.

    A thread has the columns of a span, so that only what is left is exchanged.
    """
    x = tl.abs(x)
    for halving in tl.static_range(4):  # a span is 2⁴
        one, other = tl.split(x.reshape([ROWS, COLUMNS >> (halving + 1), 2]))
        x = tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)
    return x.to(tl.int32, bitcast=True)


@triton.jit
@no_type_check
def whole(x):
    """Nearest whole number of x, |x| < 128."""
    return (x + ROUND).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
@no_type_check
def key_of(place):
    """Key whose values stand at a place of a tile: of 16, pairs of the first eight and of the second take turns."""
    return place // 16 * 16 + (place // 2 % 2) * 8 + place % 16 // 4 * 2 + place % 2


@triton.jit
@no_type_check
def wait_for(counter_ptr, ready):
    """Until so many have arrived; what they wrote is seen afterwards by the whole program."""
    while tl.atomic_add(counter_ptr, 0, sem="acquire") < ready:
        pass
    tl.debug_barrier()


@triton.jit
@no_type_check
def quantise_k(
    base, k8_ptr, scale_ptr, mean_ptr, counter_ptr, ready, part, keys, stride, DIM: tl.constexpr, COLUMNS: tl.constexpr
):
    """Keys of a tile that have the scales of one part of the four; of the tile on, there are so many `keys`."""
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
    # What is not there is minus the mean: it counts for no scale, and becomes 0.
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
    """WIDTH channels of a tile of values, transposed as pairs of keys: 16 bits, which shared memory turns over."""
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
    """Rows of Q; and what taking the mean from K leaves out of a row's scores, for its lse."""
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
    """`padded_start` over PAD: of a head's tiles the first of a sequence."""
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
    stretches,
    ahead,
    heads_kv,
    by_heads_kv,
    repeats,
    by_repeats,
    share,
    by_share,
    META: tl.constexpr,
):
    """A program's share; every row of the quantised tensors that a kernel reads is written.

    A head of K, as of V, has so many `stretches` for its statistics, a program each; none in a launch that quantises by
    what is there.  Those of `ahead` heads come first, then for each head those of the one `ahead`, if there is one, and
    what quantises its own: a `share`.
    """
    COLUMNS: tl.constexpr = META.COLUMNS
    PARTS: tl.constexpr = COLUMNS // WIDTH
    ROWS: tl.constexpr = NUMBERS // COLUMNS
    begun = ahead * 2 * stretches
    index = tl.program_id(0)
    counts = index < begun
    if counts:
        pair = index // (2 * stretches)
        index -= pair * (2 * stretches)
    else:
        pair, index = divided(index - begun, share, by_share)
        later = tl.where(ahead < pairs, 2 * stretches, 0)
        counts = index < later
        pair += tl.where(counts, ahead, 0)
        index -= tl.where(counts, 0, later)
    if pair < pairs:
        batch_of, head = divided(pair, heads_kv, by_heads_kv)
        batch, q_start, k_start, queries, keys = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, batch_of, META.PACKED)
        # Of no keys there is a stretch too.
        count = tl.maximum((keys + chunk - 1) // chunk, 1) if META.PACKED else stretches
        # A launch without statistics waits for none, whatever stands in the counters.
        ready = tl.where(stretches > 0, count + 1, NEVER)
        of_k_or_v = 2 * PARTS * tiles_of(seqlen_k, TILE)
        if counts or index < of_k_or_v:
            of_k = index & 1 == 0
            index >>= 1
            row = tl.where(of_k, strides.k.row, strides.v.row)
            base = tl.where(of_k, inputs.k, inputs.v)
            before = tl.cast(batch, tl.int64) * tl.where(of_k, strides.k.batch, strides.v.batch)
            before += tl.cast(head, tl.int64) * tl.where(of_k, strides.k.head, strides.v.head)
            place = pair + tl.where(of_k, 0, pairs)
            arrived, found = statistics.arrived + place, statistics.found + tl.cast(place, tl.int64) * COLUMNS
            if counts:
                if index < count:
                    start = index * chunk
                    end = tl.minimum(start + chunk, keys)
                    parts = statistics.parts + (tl.cast(place, tl.int64) * stretches) * COLUMNS
                    base += before + k_start * row
                    if of_k:
                        sums = sum_of(base, start, end, row, META.DIM, COLUMNS)
                        gather_sums(
                            sums=sums,
                            parts_ptr=parts,
                            found_ptr=found,
                            counter_ptr=arrived,
                            part=index,
                            count=count,
                            keys=keys,
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
                part = index & (PARTS - 1)
                tile = index // PARTS
                first = tile * TILE
                if first < keys:
                    tile += head * tiles_of(rows_k, TILE) + padded_tile(batch_of, k_start, keys, META.PACKED, TILE)
                    base += before + (k_start + first) * row
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
                base = first_row(inputs.q, batch, q_start + first, reader, strides.q)
                tile = reader * tiles_of(rows_q, Q_PAD) + tile * (ROWS // Q_PAD)
                tile += padded_tile(batch_of, q_start, queries, META.PACKED, Q_PAD)
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
