# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Tiles of listed blocks of keys, for the block-sparse forward for Hopper: where they begin, and what is hidden."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.flash.hopper.tiles import hide
from attnbench.kernels.shared.hopper import Argument, aggregate


@gluon.jit
@no_type_check
def list_of(indices_ptr, row, columns):
    """Where the list of a row of the map begins."""
    return indices_ptr + gl.cast(row, gl.int64) * columns


@gluon.jit
@no_type_check
def key_of(indices, tile, BLOCK_K: gl.constexpr, BLOCK_N: gl.constexpr):
    """First key of a tile of a list: a block of keys, or a part of one."""
    PARTS: gl.constexpr = BLOCK_K // BLOCK_N
    return gl.load(indices + tile // PARTS) * BLOCK_K + tile % PARTS * BLOCK_N


@aggregate
class ListMask:
    """What is hidden of a tile of a list: keys past the end and, with HAS_RIGHT, those after a query's own position.

    It stands where `flash.hopper.tiles.Mask` does.
    """

    indices_ptr: Argument
    heads: Argument
    rows: Argument
    columns: Argument
    "of the map"
    left: Argument
    right: Argument
    HAS_LEFT: gl.constexpr
    HAS_RIGHT: gl.constexpr
    BLOCK_Q: gl.constexpr
    BLOCK_K: gl.constexpr

    @gluon.jit
    @no_type_check
    def hide_tile(self, scores, work, tile, row):
        """Scores of a tile of a work item's list with those at -∞ that are hidden; rows from `row`."""
        number = (work.batch * self.heads + work.head) * self.rows + work.first // self.BLOCK_Q
        at = key_of(list_of(self.indices_ptr, number, self.columns), tile, self.BLOCK_K, scores.shape[1])
        return hide(scores, row, at, work.keys, work.keys - work.queries, self)

    @gluon.jit
    @no_type_check
    def unseen(self, row, work, BLOCK_N: gl.constexpr):
        """How many of a work item's tiles the rows from `row` leave out: none, which the compiler does not know.

        So the row is read here: a load from shared memory that nobody has read may not be open where a tile is released.
        """
        return gl.minimum(row, 0)
