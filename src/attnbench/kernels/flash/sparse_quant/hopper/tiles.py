# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Listed blocks of keys, in the interface that the consumers of `flash.quant.hopper` use."""

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
    """A work item's tiles of keys: the blocks of its list, the last first.  It stands where `EveryTile` does."""

    mask: Mask
    indices_ptr: Argument
    heads: Argument
    lists: Argument
    "of a head"
    columns: Argument
    "of the map"
    BLOCK_Q: gl.constexpr
    BLOCK_K: gl.constexpr

    @gluon.jit
    @no_type_check
    def listed(self, work):
        """Where the list of a work item begins."""
        number = (work.batch * self.heads + work.head) * self.lists + work.first // self.BLOCK_Q
        return list_of(self.indices_ptr, number, self.columns)

    @gluon.jit
    @no_type_check
    def number(self, listed, place):
        """Which block of the sequence is at a place of the list."""
        return gl.load(listed + place)

    @gluon.jit
    @no_type_check
    def scales(self, scales, listed, place, number):
        """The four scales of the tile at a place, whose number is given, and the number of the one before.

        So a number is loaded a tile before its scales are, and these a tile before they are needed.
        """
        found = gl.load(scales + number // (TILE // self.BLOCK_K) * 4)
        return found, gl.load(listed + gl.maximum(place - 1, 0))

    @gluon.jit
    @no_type_check
    def hide_tile(self, scores, work, place, row):
        """Scores of the tile at a place with those at -∞ that rows do not see; rows from `row`."""
        block = self.number(self.listed(work), place)
        return hide(scores, row, block * self.BLOCK_K, work.keys, work.keys - work.queries, self.mask)

    @gluon.jit
    @no_type_check
    def unseen(self, row, work, BLOCK_N: gl.constexpr):
        """How many of a work item's first tiles show nothing to the 64 rows from `row`: all, past the last query."""
        return gl.where(row < work.queries, 0, work.end)
