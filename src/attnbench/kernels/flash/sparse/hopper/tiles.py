# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Tiles of listed key blocks, for the block-sparse forward for Hopper: their first keys, and their masks.

A tile is a block of keys, one of its PARTS parts, or BLOCKS consecutive blocks of a list, which need not be adjacent.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.flash.hopper.tiles import hide
from attnbench.kernels.shared.hopper import Argument, aggregate


@gluon.jit
@no_type_check
def list_of(indices_ptr, number, columns):
    """Address of a list's first entry."""
    return indices_ptr + gl.cast(number, gl.int64) * columns


@gluon.jit
@no_type_check
def place_of(places, tile, PARTS: gl.constexpr):
    """Position of a unit's own tile in its list; 0 for an index before the first."""
    at = gl.maximum(tile, 0)
    return gl.load(places + at // PARTS, mask=tile >= 0, other=0) * PARTS + at % PARTS


@gluon.jit
@no_type_check
def blocks_of(indices, tile, listed, PARTS: gl.constexpr, BLOCKS: gl.constexpr):
    """The block or the two blocks of a tile of a list of `listed` blocks: a tuple.

    Of an odd number the last tile has the last block twice, and `ListMask` hides the second.
    """
    blocks = (gl.load(indices + tile * BLOCKS // PARTS),)
    if BLOCKS == 2:
        blocks = blocks + (gl.load(indices + gl.minimum(tile * 2 + 1, listed - 1)),)
    return blocks


@gluon.jit
@no_type_check
def key_of(block, tile, BLOCK_K: gl.constexpr, PARTS: gl.constexpr):
    """First key of a tile of the given block."""
    return block * BLOCK_K + tile % PARTS * (BLOCK_K // PARTS)


@aggregate
class ListMask:
    """Mask of a list's tiles: hides keys past the end and, with HAS_RIGHT, those after a query's own position.

    It has the interface of `flash.hopper.tiles.Mask`.
    """

    indices_ptr: Argument
    places_ptr: Argument
    counts_ptr: Argument
    heads: Argument
    rows: Argument
    "rows of the map"
    lists: Argument
    "lists of a head"
    columns: Argument
    "columns of the map"
    left: Argument
    right: Argument
    HAS_LEFT: gl.constexpr
    HAS_RIGHT: gl.constexpr
    BLOCK_Q: gl.constexpr
    BLOCK_K: gl.constexpr
    PARTS: gl.constexpr
    BLOCKS: gl.constexpr
    SHARE: gl.constexpr
    HELD: gl.constexpr
    "whether a warpgroup has its queries in registers"

    @gluon.jit
    @no_type_check
    def hide_tile(self, scores, work, tile, row):
        """Scores of a tile of a work item's list with hidden ones set to -∞; rows begin at `row`."""
        number = (work.batch * self.heads + work.head) * self.lists + work.first // (self.BLOCK_Q * self.SHARE)
        indices = list_of(self.indices_ptr, number, self.columns)
        if self.BLOCKS == 1:
            block = gl.load(indices + tile // self.PARTS)
            at = key_of(block, tile, self.BLOCK_K, self.PARTS)
        else:
            listed = gl.load(self.counts_ptr + number)
            first, second = blocks_of(indices, tile, listed, self.PARTS, self.BLOCKS)
            # A block that is not there begins after the last key.
            second = gl.where(tile * 2 + 1 < listed, second * self.BLOCK_K, work.keys)
            columns = gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))[None, :]
            at = gl.where(columns < self.BLOCK_K, first * self.BLOCK_K, second - self.BLOCK_K)
        return hide(scores, row, at, work.keys, work.keys - work.queries, self)

    @gluon.jit
    @no_type_check
    def unseen(self, row, work, BLOCK_N: gl.constexpr):
        """How many of a work item's tiles the rows from `row` skip: always 0, which the compiler cannot know.

        `row` is used so that its load from shared memory completes here: none may be pending when a tile is released.
        """
        return gl.minimum(row, 0)

    @gluon.jit
    @no_type_check
    def own(self, work, row):
        """Positions of the tiles selected by the row of the map that contains the 64 rows from `row`, and their number.

        The `split` of the work item, never negative, is read here for the same reason as in `unseen`.
        """
        own = row // self.BLOCK_Q
        number = (work.batch * self.heads + work.head) * self.rows + own
        count = gl.load(self.counts_ptr + number, mask=(own < self.rows) & (work.split >= 0), other=0)
        return list_of(self.places_ptr, number, self.columns), count * self.PARTS
