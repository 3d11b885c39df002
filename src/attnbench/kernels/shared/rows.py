# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Loads and stores of tiles of rows, and the order of programs, for every kernel family."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl


class Reach(NamedTuple):
    """Keys [low, high) that some rows of a range see, and [all_low, all_high) that all of them see; or vice versa."""

    low: Any
    all_low: Any
    all_high: Any
    high: Any


@triton.jit
@no_type_check
def section_of(program, tiles, pairs, group):
    """Tile (longest first) and pair of a program: sections of `group` pairs are processed one after another."""
    section = program // (tiles * group)
    within = program - section * (tiles * group)
    wide = tl.minimum(group, pairs - section * group)
    return within // wide, section * group + within % wide


@triton.jit
@no_type_check
def load_rows(
    base, first, count, stride, DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_DIM: tl.constexpr, WHOLE: tl.constexpr
):
    """A tile [BLOCK, BLOCK_DIM] of rows from `first`, zeros from row `count` on (not checked if WHOLE)."""
    where, mask = place_of(base, first, count, stride, DIM, BLOCK, BLOCK_DIM)
    if not WHOLE:
        return tl.load(where, mask=mask, other=0.0)
    if DIM == BLOCK_DIM:
        return tl.load(where)
    return tl.load(where, mask=(tl.arange(0, BLOCK_DIM) < DIM)[None, :], other=0.0)


@triton.jit
@no_type_check
def place_of(base, first, count, stride, DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """Offsets of the elements of a tile of rows from `first`, and the mask of those before row `count`."""
    at = tl.arange(0, BLOCK)
    dims = tl.arange(0, BLOCK_DIM)
    where = (base + tl.cast(first, tl.int64) * stride) + (at[:, None] * stride + dims[None, :])
    mask = (first + at < count)[:, None]
    if DIM != BLOCK_DIM:
        mask = mask & (dims[None, :] < DIM)
    return where, mask


@triton.jit
@no_type_check
def store_rows(base, first, count, stride, tile, DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """Store the rows of a tile [BLOCK, BLOCK_DIM] that are before row `count`."""
    where, mask = place_of(base, first, count, stride, DIM, BLOCK, BLOCK_DIM)
    tl.store(where, tile.to(base.dtype.element_ty), mask=mask)


@triton.jit
@no_type_check
def add_rows(base, first, count, stride, tile, DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """Add the rows of a tile [BLOCK, BLOCK_DIM] that are before row `count`, by atomics."""
    where, mask = place_of(base, first, count, stride, DIM, BLOCK, BLOCK_DIM)
    tl.atomic_add(where, tile, mask=mask, sem="relaxed")


@triton.jit
@no_type_check
def in_rows(part, COLUMNS: tl.constexpr):
    """Sums of dQ of 64 rows, from the order in which four warps hold a product and store it.

    Columns are in groups of 8.  Within a group a warp has 16 rows, and a thread two adjacent columns of one row and of
    the row 8 below it.
    """
    pieces = tl.reshape(part, (COLUMNS // 8, 4, 8, 4, 2, 2))  # columns, warps, rows, columns, rows, columns
    return tl.reshape(tl.permute(pieces, (1, 4, 2, 0, 3, 5)), (64, COLUMNS))
