# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Building blocks of the attention backwards for Hopper, written in Gluon.

Above 128 dims two warpgroups share 64 keys.  Each has half of the columns of every gradient, so tiles are loaded as two
halves of their columns, and each warpgroup stores its part of the weights and of dS for both (`exchange_share`).

dQ is summed in an fp32 workspace [heads, rows, columns].  64 rows of a head are tiles of 64 columns there, one after
another, each in the order in which four warps hold a product (`in_order`; `rows.in_rows` reads it).  So a thread adds four
adjacent numbers at a time from its registers (`DirectSums`, `add_numbers`).
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from attnbench.kernels.shared.hopper import ROWS, aggregate, coordinates, load_tile

SHARE = gl.constexpr(32)
"Rows of a tile for which one of two warpgroups that share 64 keys computes the scores."

PART = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))
"Layout of 64 columns of dQ as one line, in the order of `in_order`: four adjacent numbers a thread."


@gluon.jit
@no_type_check
def fill_halves(ring, count, desc, start, rows, first, head, EXTRA_BYTES: gl.constexpr = 0):
    """Load rows as two tiles with half of the columns each; the caller loads EXTRA_BYTES on the first tile's mbarrier."""
    ring.fill(2 * count, desc, start, rows, first, head, EXTRA_BYTES)
    ring.fill(count=2 * count + 1, desc=desc, start=start, rows=rows, first=first, head=head, column=ring.COLUMNS)


@gluon.jit
@no_type_check
def fill_both(ring, count, desc, start, rows, first, head, EXTRA_BYTES: gl.constexpr, AWAIT: gl.constexpr):
    """The same on one mbarrier, on which the caller loads EXTRA_BYTES; AWAIT as for `Ring.fill`."""
    HALF_BYTES: gl.constexpr = ring.tiles.numel // ring.STAGES * ring.tiles.dtype.primitive_bitwidth // 8
    ring.fill(2 * count, desc, start, rows, first, head, HALF_BYTES + EXTRA_BYTES, AWAIT=AWAIT)
    stage = 2 * count % ring.STAGES
    place = coordinates(start, rows, first, head, ring.COLUMNS)
    load_tile(desc, place, ring.full.index(stage), ring.tiles.index(stage + 1))


@gluon.jit
@no_type_check
def exchange_share(share, tile, filled, phase, WARPGROUP: gl.constexpr):
    """Store this warpgroup's part of a tile [64 keys, 64 rows] for both, and wait for the other warpgroup's."""
    tile.slice(WARPGROUP * SHARE, SHARE, 1).store(share)
    fence_async_shared()
    mbarrier.arrive(filled)
    mbarrier.wait(filled, phase)


@gluon.jit
@no_type_check
def in_order(part):
    """Reorder a product [64, 64] by registers and threads, as in `rows.in_rows`.

    Stored row by row, two rows of a warp would conflict in a shared-memory bank.
    """
    pieces = part.reshape([4, 2, 8, 8, 4, 2])
    return pieces.permute([3, 0, 2, 4, 1, 5]).reshape([ROWS, ROWS])


@aggregate
class DirectSums:
    """Sums of dQ, added to from registers."""

    pointer: gl.tensor
    rows: gl.tensor
    "of a head"

    @gluon.jit
    @no_type_check
    def place(self, work, head, at, WARPGROUP: gl.constexpr, PIECES: gl.constexpr):
        """Pointer to this warpgroup's columns of the tile of rows that begins at row `at`.

        `work.padded` is the sequence's first row in the workspace, a multiple of 64.
        """
        row = head.to(gl.int64) * self.rows + work.padded + at
        return self.pointer + (row * (2 * PIECES) + WARPGROUP * PIECES * ROWS) * ROWS


@gluon.jit
@no_type_check
def add_numbers(part, place, PIECE: gl.constexpr):
    """Add columns of dQ from registers, to the PIECE-th tile of sums from a pointer."""
    numbers = gl.convert_layout(in_order(part).reshape([ROWS * ROWS]), PART, assert_trivial=True)
    gl.atomic_add(place + PIECE * ROWS * ROWS + gl.arange(0, ROWS * ROWS, PART), numbers, sem="relaxed")


@gluon.jit
@no_type_check
def end_additions(filled, count):
    """Keep additions before the next wait for products, which the assembler would move up among them: see `Ring.wait`.

    `filled` are the mbarriers of two stages, two for each stage; that of the count-th tile's dS is complete.
    """
    mbarrier.wait(filled.index(2 * (count & 1) + 1), count // 2 & 1)
