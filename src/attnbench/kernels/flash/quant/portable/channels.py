# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Statistics of a head's channels: what is subtracted from K, and the scale of V from the largest |V|.

V's are exact.  K's is the mean of a sample: any vector subtracted from all keys of a head leaves the softmax as it is, and
one close to the mean is as good.  The sample has one row of each stratum of up to eight rows.  A program computes a stretch
of a head's rows or sample; the last program to finish combines the stretches in their order.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.shared.rows import load_rows

STEP = tl.constexpr(16384)
"Elements that a program loads at a time."
E4M3 = tl.constexpr(448.0)
LEAST = tl.constexpr(2.0**-60)
"Rows and channels whose largest absolute value is smaller count as zeros."
SAMPLE = tl.constexpr(512)
"""Fewest rows of a sample, unless there are fewer.  One huge row moves their mean by a quarter of the step of int8 that the
keys of its scale have then: those are rounded to the mean.  At half a step, with 256 rows, noise would round them up."""
THINNEST = tl.constexpr(3)
"Log2 of the most rows of a stratum."


@triton.jit
@no_type_check
def widened(x):
    """16-bit values as fp32; bf16 takes one instruction a value, in either half of a register."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
@no_type_check
def scale_of(bits, LARGEST: tl.constexpr):
    """Scale and inverse scale from the largest absolute value; NaN if that is not finite."""
    size = bits.to(tl.float32, bitcast=True)
    size = tl.where(bits < 0x7F800000, tl.maximum(size, LEAST), float("nan"))
    return size * (1.0 / LARGEST), 1.0 / size * LARGEST


@triton.jit
@no_type_check
def stratum_of(keys):
    """Log2 of the rows of a stratum: the most up to THINNEST that leave SAMPLE strata; 0 if none does."""
    log2 = tl.cast(0, tl.int32)
    for halving in tl.static_range(1, THINNEST + 1):
        log2 += (keys >= SAMPLE << halving).to(tl.int32)
    return log2


@triton.jit
@no_type_check
def row_of(number, stratum):
    """Row of the sample in the stratum of a number.

    Its place is a hash of the number, so that rows with a period, such as the width of a video, are sampled in all phases.
    """
    bits = number.to(tl.uint32) * 0x9E3779B1
    bits = (bits ^ (bits >> 15)) * 0x85EBCA77
    return (number << stratum) + ((bits >> (32 - THINNEST)).to(tl.int32) & ((1 << stratum) - 1))


@triton.jit
@no_type_check
def largest_of_rows(base, first, end, stride, DIM: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr):
    """Largest |x| of eight rows each, per channel, or NaN; compared as 16-bit integers, which order like the numbers.

    A register holds two, which are compared at once.
    """
    ROWS: tl.constexpr = STEP // COLUMNS
    x = (
        load_rows(
            base=base, first=first, count=end, stride=stride, DIM=DIM, BLOCK=ROWS, BLOCK_DIM=COLUMNS, WHOLE=WHOLE
        ).to(tl.int16, bitcast=True)
        & 0x7FFF
    )
    for halving in tl.static_range(3):
        one, other = tl.split(x.reshape([2, (ROWS // 2) >> halving, COLUMNS]).permute(1, 2, 0))
        x = tl.maximum(one, other)
    return x


@triton.jit
@no_type_check
def sum_of(base, start, end, stride, stratum, DIM: tl.constexpr, COLUMNS: tl.constexpr):
    """Sum of a stretch of a sample's rows, per channel: eight at a time are a thread's own, without exchange."""
    ROWS: tl.constexpr = STEP // COLUMNS
    columns = tl.arange(0, COLUMNS)
    found = tl.zeros([ROWS // 8, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        numbers = first + tl.arange(0, ROWS)
        at = (base + row_of(numbers, stratum).to(tl.int64) * stride)[:, None] + columns[None, :]
        mask = (numbers < end)[:, None]
        if DIM != COLUMNS:
            mask = mask & (columns < DIM)[None, :]
        found += tl.sum(widened(tl.load(at, mask=mask, other=0.0)).reshape([8, ROWS // 8, COLUMNS]), 0)
    return tl.sum(found, 0)


@triton.jit
@no_type_check
def largest_of(base, start, end, stride, DIM: tl.constexpr, COLUMNS: tl.constexpr):
    """Largest |x| of a stretch of rows, per channel, or NaN."""
    ROWS: tl.constexpr = STEP // COLUMNS
    whole = end - ((end - start) & (ROWS - 1))
    found = tl.zeros([ROWS // 8, COLUMNS], tl.int16)
    for first in range(start, whole, ROWS):
        found = tl.maximum(found, largest_of_rows(base, first, end, stride, DIM, COLUMNS, True))
    if whole < end:
        found = tl.maximum(found, largest_of_rows(base, whole, end, stride, DIM, COLUMNS, False))
    return widened(tl.max(found, 0).to(tl.int16).to(base.dtype.element_ty, bitcast=True))


@triton.jit
@no_type_check
def is_last(counter_ptr, count):
    """Whether this is the last of `count` programs to store its part."""
    tl.debug_barrier()
    return tl.atomic_add(counter_ptr, 1, sem="acq_rel") == count - 1


@triton.jit
@no_type_check
def announce(counter_ptr):
    """Signal programs that wait for the combined result: the counter becomes one more than the number of parts."""
    tl.debug_barrier()
    tl.atomic_add(counter_ptr, 1, sem="release")


@triton.jit
@no_type_check
def parts_of(parts_ptr, count, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr):
    """The partial results of a head's stretches, padded with zeros."""
    at = parts_ptr + (tl.arange(0, CHUNKS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])
    return tl.load(at, mask=(tl.arange(0, CHUNKS) < count)[:, None], other=0.0)


@triton.jit
@no_type_check
def gather_sums(
    sums, parts_ptr, found_ptr, counter_ptr, part, count, rows, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr
):
    """Store the sums of a stretch of K; the last of `count` programs stores the mean of all `rows` of the sample."""
    columns = tl.arange(0, COLUMNS)
    tl.store(parts_ptr + part * COLUMNS + columns, sums)
    if is_last(counter_ptr, count):
        tl.debug_barrier()
        mean = tl.sum(parts_of(parts_ptr, count, COLUMNS, CHUNKS), 0) / tl.maximum(rows, 1).to(tl.float32)
        tl.store(found_ptr + columns, mean)
        announce(counter_ptr)


@triton.jit
@no_type_check
def gather_largest(
    most, parts_ptr, found_ptr, scale_ptr, counter_ptr, part, count, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr
):
    """Store the maxima of a stretch of V; the last of `count` programs stores the scale and its inverse."""
    columns = tl.arange(0, COLUMNS)
    tl.store(parts_ptr + part * COLUMNS + columns, most)
    if is_last(counter_ptr, count):
        tl.debug_barrier()
        sizes = parts_of(parts_ptr, count, COLUMNS, CHUNKS).to(tl.int32, bitcast=True)
        scale, inverse = scale_of(tl.max(sizes, 0), E4M3)
        tl.store(scale_ptr + columns, scale)
        tl.store(found_ptr + columns, inverse)
        announce(counter_ptr)
