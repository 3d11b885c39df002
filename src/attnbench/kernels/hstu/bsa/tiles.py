# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""What the block-sparse HSTU kernels share: positions of queries, nearby keys, gates, gathered rows.

A sequence of n keys is ``[history | targets]``, `seen` = n - T history rows divided into blocks of BS keys.  Queries
are its last rows.  A history row has position t, a target position t = seen; its local block is the one that contains t,
for a target the last one.  It sees min((t + 1) // BS, seen // BS) compressed blocks.

SiLU and the bounds of a sequence are those of `hstu.tiles`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

COUNTS = (
    "blocks",
    "chunks",
    "count_rows",
    "entry_rows",
    "first_unit",
    "heads",
    "lag",
    "list_heads",
    "mean_rows",
    "parts",
    "ring",
    "row_parts",
    "slot_rows",
    "span",
    "tile_rows",
    "tiles",
    "units",
)
"""Arguments whose values the code is not specialized for: another batch or length needs no recompilation."""


COMPRESSED, SELECTED, SLIDING = (tl.constexpr(branch) for branch in range(3))
"Branches, as indices of their gates; the local block belongs to the selected branch."

FIRST_ENTRY, LISTED_BLOCK, NUM_ENTRIES, RECORD = (tl.constexpr(number) for number in range(4))
"Indices of the fields of a record in the table of list tiles, and their number."


class Standing(NamedTuple):
    """Positions of queries, as numbers or tensors."""

    position: Any
    stand: Any
    "position from which a query sees: for a target that after the history"
    local: Any
    "local block; 0 without a history"


@triton.jit
@no_type_check
def standing(rows, first_query, seen, BLOCK_SIZE: tl.constexpr):
    """The `Standing` of rows of a sequence's queries."""
    position = first_query + rows
    local = tl.maximum(tl.minimum(position, seen - 1), 0) // BLOCK_SIZE
    return Standing(position=position, stand=tl.minimum(position, seen), local=local)


@triton.jit
@no_type_check
def complete_seen(stand, seen, BLOCK_SIZE: tl.constexpr):
    """How many complete blocks end at or before a query's position."""
    return tl.minimum((stand + 1) // BLOCK_SIZE, seen // BLOCK_SIZE)


@triton.jit
@no_type_check
def near_masks(keys, position, stand, local, seen, WINDOW: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Keys of the local block and of the sliding window that a query sees, broadcast over both in either order."""
    past = (keys <= position) & (keys < seen)
    return past & (keys // BLOCK_SIZE == local), past & (stand - keys < WINDOW)


@triton.jit
@no_type_check
def near_begin(first, seen, WINDOW: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """First key that the local blocks or windows of the queries from position `first` can contain."""
    begin = tl.maximum(tl.minimum(first, seen - 1), 0) // BLOCK_SIZE * BLOCK_SIZE
    if WINDOW > 0:
        begin = tl.maximum(tl.minimum(begin, tl.minimum(first, seen) - WINDOW + 1), 0)
    return begin


@triton.jit
@no_type_check
def gate_of(gates_ptr, rows, heads, head, mask, BRANCH: tl.constexpr, GATES: tl.constexpr):
    """Gates of one branch at packed rows (int64), fp32; 1 without gates."""
    if GATES == 0:
        return tl.where(mask, 1.0, 0.0)
    else:
        return tl.load(gates_ptr + (rows * heads + head) * GATES + BRANCH, mask=mask, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def near_weights(values, in_local, in_window, of_local, of_window, WINDOW: tl.constexpr):
    """Weights of a tile under the gates of the two branches that see its keys; a key in both branches counts in both."""
    factor = tl.where(in_local, of_local, 0.0)
    if WINDOW > 0:
        factor += tl.where(in_window, of_window, 0.0)
    return values * factor


@triton.jit
@no_type_check
def gather_rows(base, rows, mask, stride, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """A tile [rows, BLOCK_DIM] gathered from any rows, zeros where masked."""
    dims = tl.arange(0, BLOCK_DIM)
    where = base + rows.to(tl.int64)[:, None] * stride + dims[None, :]
    if DIM == BLOCK_DIM:
        return tl.load(where, mask=mask[:, None], other=0.0)
    else:
        return tl.load(where, mask=mask[:, None] & (dims[None, :] < DIM), other=0.0)


@triton.jit
@no_type_check
def scatter_rows(base, rows, mask, stride, tile, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """Store a tile [rows, BLOCK_DIM] to any rows."""
    dims = tl.arange(0, BLOCK_DIM)
    where = base + rows.to(tl.int64)[:, None] * stride + dims[None, :]
    mask = mask[:, None]
    if DIM != BLOCK_DIM:
        mask = mask & (dims[None, :] < DIM)
    tl.store(where, tile.to(base.dtype.element_ty), mask=mask)
