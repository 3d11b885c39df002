# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Listed key blocks, with the interface that the consumers of `flash.quant.hopper` use."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.flash.hopper.tiles import Mask, hide
from attnbench.kernels.flash.quant.hopper.tiles import TILE
from attnbench.kernels.flash.sparse.hopper.tiles import list_of
from attnbench.kernels.shared.hopper import Argument, aggregate


@aggregate
class ListedTiles:
    """A work item's key tiles: the blocks of its list, the last one first.  It has the interface of `EveryTile`."""

    mask: Mask
    indices_ptr: Argument
    heads: Argument
    lists: Argument
    "lists of a head"
    columns: Argument
    "columns of the map"
    BLOCK_Q: gl.constexpr
    BLOCK_K: gl.constexpr

    @gluon.jit
    @no_type_check
    def listed(self, work):
        """Index of the first entry of a work item's list."""
        number = (work.batch * self.heads + work.head) * self.lists + work.first // self.BLOCK_Q
        return list_of(self.indices_ptr, number, self.columns)

    @gluon.jit
    @no_type_check
    def number(self, listed, place):
        """The block (of the sequence) at a position of the list."""
        return gl.load(listed + place)

    @gluon.jit
    @no_type_check
    def scales(self, scales, listed, place, number):
        """The four scales of the tile at a position, whose block is given, and the block at the previous position.

        So a block number is loaded one tile before its scales, and the scales one tile before they are needed.
        """
        found = gl.load(scales + number // (TILE // self.BLOCK_K) * 4)
        return found, gl.load(listed + gl.maximum(place - 1, 0))

    @gluon.jit
    @no_type_check
    def hide_tile(self, scores, work, place, row):
        """Scores of the tile at a position with hidden ones set to -∞; rows begin at `row`."""
        block = self.number(self.listed(work), place)
        return hide(scores, row, block * self.BLOCK_K, work.keys, work.keys - work.queries, self.mask)

    @gluon.jit
    @no_type_check
    def unseen(self, row, work, BLOCK_N: gl.constexpr):
        """How many of a work item's first tiles are hidden from all 64 rows from `row`: all, for rows past the end."""
        return gl.where(row < work.queries, 0, work.end)
