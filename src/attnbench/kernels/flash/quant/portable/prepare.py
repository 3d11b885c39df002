# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""What the forward needs of 16-bit tensors, in one launch: mean of K and largest |V|, then all three quantised.

Programs are small and of five kinds.  Those of K's and V's statistics take a stretch of a head's rows each, and the last
of a head to arrive puts the stretches together; those that quantise take 8192 numbers of q, k or v and wait for what
they need of the head.  They come group by group of heads, the statistics of a group a group ahead: its K and V are still
in the L2 when they are read for the second time.  Programs begin in the order of their numbers and statistics wait
for nobody, so whoever waits is waiting for programs that run.

Rows of Q have a scale each.  K has four scales a tile: one for the keys n of the same (n % 8) // 2, which one thread of a
tensor core's result holds, so that they cost it a number a tile.  V has one a channel.  e4m3 is transposed because 8-bit
products want both operands with the summed dim innermost, and its keys stand in the order in which a thread's weights
become an operand without an exchange (`key_of`).
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.flash.tiles import first_row, padded_start, sequence
from attnbench.kernels.shared.rows import load_rows, place_of, store_rows

TILE = tl.constexpr(128)
"Keys that have scales of their own."
Q_PAD = tl.constexpr(64)
"Queries of a sequence begin at a multiple of this."
NUMBERS = tl.constexpr(8192)
"Of a program that quantises."
WIDTH = tl.constexpr(64)
"Channels of V of such a program."
INT8 = tl.constexpr(127.0)
E4M3 = tl.constexpr(448.0)
LEAST = tl.constexpr(2.0**-60)
"Rows and channels whose largest value is smaller count as zeros."
LEAST_OF_Q = tl.constexpr(2.0**-80)
"Of a row's scale times the problem's: times the least of a key's it is over 0, as a hidden score's -∞ needs it to be."
ROUND = tl.constexpr(12582912.0)
"1.5 · 2²³: a sum with it has the nearest whole number in its last bits."
NEVER = tl.constexpr(-(2**31))
"Fewer than any counter says."
COUNTS = ("first", "ahead", "group", "chunk", "heads", "heads_kv", "pairs", "seqlen_q", "seqlen_k", "rows_q", "rows_k")
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
    REPEATS: int


@triton.jit
@no_type_check
def size_of(x):
    """|x| as bits, which order as numbers do, with infinity and then NaN on top."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
@no_type_check
def scale_of(bits, LARGEST: tl.constexpr):
    """A scale and its inverse, of the largest size; NaN of one that is not finite."""
    size = bits.to(tl.float32, bitcast=True)
    size = tl.where(bits < 0x7F800000, tl.maximum(size, LEAST), float("nan"))
    return size * (1.0 / LARGEST), 1.0 / size * LARGEST


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
def stretches(keys, chunk):
    """Into how many a head's keys are cut: one of no keys too."""
    return tl.maximum((keys + chunk - 1) // chunk, 1)


@triton.jit
@no_type_check
def statistic_of(base, start, end, stride, DIM: tl.constexpr, COLUMNS: tl.constexpr, OF_K: tl.constexpr):
    """Of each channel the sum of a stretch of rows, or as bits the largest size.

    Eight rows at a time are one thread's, whose layout is that of no other load here: else Triton would exchange them.
    """
    ROWS: tl.constexpr = 2 * NUMBERS // COLUMNS
    found = tl.zeros([ROWS // 8, COLUMNS], tl.float32 if OF_K else tl.int32)
    for first in range(start, end, ROWS):
        x = load_rows(base, first, end, stride, DIM, ROWS, COLUMNS, False).to(tl.float32)
        x = x.reshape([8, ROWS // 8, COLUMNS])
        if OF_K:
            found += tl.sum(x, 0)
        else:
            found = tl.maximum(found, tl.max(size_of(x), 0))
    if OF_K:
        return tl.sum(found, 0)
    return tl.max(found, 0).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def gather(
    found,
    parts_ptr,
    found_ptr,
    scale_ptr,
    counter_ptr,
    part,
    count,
    keys,
    COLUMNS: tl.constexpr,
    CHUNKS: tl.constexpr,
    OF_K: tl.constexpr,
):
    """Store what was found of a stretch; the last of `count` to arrive stores the mean, or the largest and its scale."""
    columns = tl.arange(0, COLUMNS)
    tl.store(parts_ptr + part * COLUMNS + columns, found)
    tl.debug_barrier()
    if tl.atomic_add(counter_ptr, 1, sem="acq_rel") == count - 1:
        tl.debug_barrier()
        parts = tl.arange(0, CHUNKS)
        parts_at = parts_ptr + (parts[:, None] * COLUMNS + columns[None, :])
        every = tl.load(parts_at, mask=(parts < count)[:, None], other=0.0)
        if OF_K:
            value = tl.sum(every, 0) / tl.maximum(keys, 1).to(tl.float32)
        else:
            most = tl.max(every.to(tl.int32, bitcast=True), 0)
            value = most.to(tl.float32, bitcast=True)
            tl.store(scale_ptr + columns, scale_of(most, E4M3)[0])
        tl.store(found_ptr + columns, value)
        tl.debug_barrier()
        tl.atomic_add(counter_ptr, 1, sem="release")


@triton.jit
@no_type_check
def quantise_k(
    base,
    k8_ptr,
    scale_ptr,
    mean_ptr,
    counter_ptr,
    ready,
    first,
    part,
    keys,
    stride,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Keys of a tile from `first` that have the scales of one part of the four."""
    PARTS: tl.constexpr = COLUMNS // WIDTH
    SCALES: tl.constexpr = 4 // PARTS
    ROWS: tl.constexpr = TILE // PARTS
    at = tl.arange(0, ROWS)
    at = at // (2 * SCALES) * 8 + part * (2 * SCALES) + at % (2 * SCALES)
    columns = tl.arange(0, COLUMNS)
    there = first + at < keys
    k_at = base + tl.cast(first, tl.int64) * stride + (at[:, None] * stride + columns[None, :])
    k = tl.load(k_at, mask=there[:, None] & (columns < DIM)[None, :], other=0.0, eviction_policy="evict_first")
    wait_for(counter_ptr, ready)
    k = tl.where(there[:, None], k.to(tl.float32) - tl.load(mean_ptr + columns)[None, :], 0.0)
    sizes = tl.max(size_of(k), 1).reshape([TILE // 8, SCALES, 2])
    scale, inverse = scale_of(tl.max(tl.max(sizes, 2), 0), INT8)
    inverses = tl.broadcast_to(inverse[None, :, None], [TILE // 8, SCALES, 2]).reshape([ROWS])
    tl.store(scale_ptr + part * SCALES + tl.arange(0, SCALES), scale)
    tl.store(k8_ptr + (at[:, None] * COLUMNS + columns[None, :]), whole(k * inverses[:, None]))


@triton.jit
@no_type_check
def quantise_v(
    base, v8_ptr, most_ptr, counter_ptr, ready, first, part, keys, stride, DIM: tl.constexpr, REPEATS: tl.constexpr
):
    """WIDTH channels of a tile of values from `first`, transposed; of consecutive places one thread holds a few."""
    BEHIND: tl.constexpr = TILE // REPEATS
    columns = part * WIDTH + tl.arange(0, WIDTH)
    keys_at = key_of(tl.arange(0, BEHIND)[None, :] * REPEATS + tl.arange(0, REPEATS)[:, None])[:, :, None]
    v_at = base + tl.cast(first, tl.int64) * stride + (keys_at * stride + columns[None, None, :])
    there = (first + keys_at < keys) & (columns < DIM)[None, None, :]
    v = tl.load(v_at, mask=there, other=0.0, eviction_policy="evict_first")
    wait_for(counter_ptr, ready)
    most = tl.load(most_ptr + columns).to(tl.int32, bitcast=True)
    _, inverse = scale_of(most, E4M3)
    v8 = (v.to(tl.float32) * inverse[None, None, :]).to(tl.float8e4nv).permute(2, 1, 0).reshape([WIDTH, TILE])
    tl.store(v8_ptr + (columns[:, None] * TILE + tl.arange(0, TILE)[None, :]), v8)


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
    first,
    queries,
    stride,
    softmax_scale,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Rows of Q from `first`; what taking the mean from K leaves out of a row's scores, for its lse, comes last."""
    ROWS: tl.constexpr = NUMBERS // COLUMNS
    at = first + tl.arange(0, ROWS)
    where, there = place_of(base, first, queries, stride, DIM, ROWS, COLUMNS)
    q = tl.load(where, mask=there, other=0.0, eviction_policy="evict_first").to(tl.float32)
    end = (queries + Q_PAD - 1) // Q_PAD * Q_PAD
    scale, inverse = scale_of(tl.max(size_of(q), 1), INT8)
    scale *= softmax_scale
    tl.store(scale_ptr + at, tl.where(scale < LEAST_OF_Q, LEAST_OF_Q, scale), mask=at < end)
    store_rows(q8_ptr, first, end, COLUMNS, whole(q * inverse[:, None]), COLUMNS, ROWS, COLUMNS)
    wait_for(counter_ptr, ready)
    mean = tl.load(mean_ptr + tl.arange(0, COLUMNS))
    tl.store(shift_ptr + at, tl.sum(q * mean[None, :], 1) * softmax_scale, mask=at < end)


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
    heads,
    heads_kv,
    pairs,
    rows_q,
    rows_k,
    chunk,
    group,
    ahead,
    first,
    META: tl.constexpr,
):
    """A program's share; every row of the quantised tensors that a kernel reads is written.

    Of `ahead` groups the statistics come first, then for each group those of the group `ahead`, if there are more, and
    what quantises its own.  The program is number `first` of all, and further.
    """
    COLUMNS: tl.constexpr = META.COLUMNS
    PARTS: tl.constexpr = COLUMNS // WIDTH
    ROWS: tl.constexpr = NUMBERS // COLUMNS
    repeats = heads // heads_kv
    chunks = stretches(seqlen_k, chunk)
    of_k_or_v = (seqlen_k + TILE - 1) // TILE * PARTS
    of_q = (seqlen_q + ROWS - 1) // ROWS * repeats
    programs = 2 * chunks * group  # of the statistics of a group
    later = tl.where(ahead * group < pairs, programs, 0)
    number = tl.program_id(0) + first
    turn = number // programs
    at = number - turn * programs
    counts = turn < ahead
    if turn >= ahead:
        number -= ahead * programs
        each = later + (2 * of_k_or_v + of_q) * group
        turn = number // each
        at = number - turn * each
        counts = at < later
        turn += tl.where(counts, ahead, 0)
        at -= tl.where(counts, 0, later)
    index = at // group
    pair = turn * group + at - index * group
    if pair < pairs:
        batch_of = pair // heads_kv
        head = pair - batch_of * heads_kv
        batch, q_start, k_start, queries, keys = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, batch_of, META.PACKED)
        count = stretches(keys, chunk)
        # A launch without statistics waits for none, whatever stands in the counters.
        ready = tl.where(first == 0, count + 1, NEVER)
        k_base = first_row(inputs.k, batch, k_start, head, strides.k)
        v_base = first_row(inputs.v, batch, k_start, head, strides.v)
        k_arrived, v_arrived = statistics.arrived + pair, statistics.arrived + pairs + pair
        k_found = statistics.found + tl.cast(pair, tl.int64) * COLUMNS
        v_found = k_found + tl.cast(pairs, tl.int64) * COLUMNS
        v_scale = made.v_scale + tl.cast(pair, tl.int64) * COLUMNS
        if counts:
            part = index // 2
            if part < count:
                end = tl.minimum(part * chunk + chunk, keys)
                parts = statistics.parts + tl.cast(pair, tl.int64) * chunks * COLUMNS
                if index % 2 == 0:
                    found = statistic_of(k_base, part * chunk, end, strides.k.row, META.DIM, COLUMNS, True)
                    gather(found, parts, k_found, v_scale, k_arrived, part, count, keys, COLUMNS, META.CHUNKS, True)
                else:
                    found = statistic_of(v_base, part * chunk, end, strides.v.row, META.DIM, COLUMNS, False)
                    parts += tl.cast(pairs, tl.int64) * chunks * COLUMNS
                    gather(found, parts, v_found, v_scale, v_arrived, part, count, keys, COLUMNS, META.CHUNKS, False)
        elif index < 2 * of_k_or_v:
            part = index // 2 % PARTS
            begin = index // 2 // PARTS * TILE
            place = tl.cast(head, tl.int64) * rows_k + padded_start(batch_of, k_start, keys, META.PACKED, TILE) + begin
            if begin < keys:
                if index % 2 == 0:
                    k8, k_scale = made.k + place * COLUMNS, made.k_scale + place // TILE * 4
                    quantise_k(
                        k_base,
                        k8,
                        k_scale,
                        k_found,
                        k_arrived,
                        ready,
                        begin,
                        part,
                        keys,
                        strides.k.row,
                        META.DIM,
                        COLUMNS,
                    )
                else:
                    v8 = made.v + place * COLUMNS
                    quantise_v(
                        v_base, v8, v_found, v_arrived, ready, begin, part, keys, strides.v.row, META.DIM, META.REPEATS
                    )
        else:
            index -= 2 * of_k_or_v
            reader = head * repeats + index % repeats
            begin = index // repeats * ROWS
            if begin < queries:
                q_base = first_row(inputs.q, batch, q_start, reader, strides.q)
                place = tl.cast(reader, tl.int64) * rows_q + padded_start(
                    batch_of, q_start, queries, META.PACKED, Q_PAD
                )
                q8, q_scale, q_shift = made.q + place * COLUMNS, made.q_scale + place, made.q_shift + place
                quantise_q(
                    q_base,
                    q8,
                    q_scale,
                    q_shift,
                    k_found,
                    k_arrived,
                    ready,
                    begin,
                    queries,
                    strides.q.row,
                    scale,
                    META.DIM,
                    COLUMNS,
                )
