# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Paged HSTU attention for Hopper: the dense forward with a producer warp that loads cached keys from their pages.

Keys of a sequence are numbered so that a tile is either all cached or all new: cached keys 0 to c - 1, a gap up to the
next tile boundary, then the step's own rows.  Queries are the last rows, and the mask is that of the dense forward with
a cache.  A key in the gap is loaded as zeros: its score is 0, SiLU(0) is 0, and its value is 0.  So the consumer warps do
not depend on pages at all.

The keys of a page and head are one box of the pool's tensor descriptor, and so are its values.  The box ends at the last
cached key (`rows_of`): whatever follows it in the page reads as 0.  Where pages are smaller than a tile, a tile is loaded
by several boxes, each into its own rows of the tile.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attnbench.kernels.hstu.dense.hopper.forward import start_warps
from attnbench.kernels.hstu.dense.hopper.tiles import Mask
from attnbench.kernels.hstu.tiles import COUNTS, Bounds
from attnbench.kernels.shared.hopper import Argument, aggregate, coordinates, load_tile


class ForwardMeta(NamedTuple):
    """Compile-time constants of `hstu_paged_hopper_forward`; from APPROXIMATE on those of the dense forward."""

    PAGE: int
    "keys of a page"
    HAS_TARGETS: bool
    APPROXIMATE: bool
    BLOCK_N: int
    BLOCK_V: int
    STAGES: int
    ROOM: int
    GROUPS: int
    DRAWS: bool
    REGISTERS: int
    SPLIT: bool


@aggregate
class PagedProblem:
    """Launch arguments that describe the grid of work, like the dense `GridProblem`."""

    offsets_ptr: Argument
    cached_ptr: Argument
    num_targets_ptr: Argument
    mask: Mask
    heads: Argument
    pairs: Argument
    "(sequence, head) pairs"
    tiles: Argument
    "of the longest sequence"
    group: Argument
    "pairs of a section (`section_of`)"
    BLOCK_N: gl.constexpr

    @gluon.jit
    @no_type_check
    def sequence_of(self, number):
        """The `Bounds` of the number-th sequence; the gap after its cached keys counts as keys."""
        start = gl.load(self.offsets_ptr + number)
        new = gl.load(self.offsets_ptr + number + 1) - start
        first_query = (gl.load(self.cached_ptr + number) + self.BLOCK_N - 1) // self.BLOCK_N * self.BLOCK_N
        keys = first_query + new
        seen = keys
        if self.mask.HAS_TARGETS:
            seen = keys - gl.load(self.num_targets_ptr + number)
        return Bounds(key_start=start, query_start=start, keys=keys, first_query=first_query, prefix=0, seen=seen)


@aggregate
class Pages:
    """A source of keys and values: first from pages, then from the packed new rows."""

    pool_desc: tma.tensor_descriptor
    "of the rows of all pages"
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    cached_ptr: Argument
    indptr_ptr: Argument
    indices_ptr: Argument
    PAGE: gl.constexpr
    "keys of a page"

    @gluon.jit
    @no_type_check
    def keys_of(self, number, start, work, head):
        """Keys and values of the number-th sequence, whose new rows begin at row `start`."""
        table_ptr = self.indices_ptr + gl.load(self.indptr_ptr + number)
        return SequencePages(
            pool_desc=self.pool_desc,
            k_desc=self.k_desc,
            v_desc=self.v_desc,
            table_ptr=table_ptr,
            cached=gl.load(self.cached_ptr + number),
            first_new=work.first_query,
            start=start,
            new=work.keys - work.first_query,
            head=head,
            PAGE=self.PAGE,
        )


@aggregate
class SequencePages:
    """Keys and values of one sequence and head."""

    pool_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    table_ptr: gl.tensor
    "of its pages"
    cached: gl.tensor
    first_new: gl.tensor
    "number of its first new key"
    start: gl.tensor
    "row of that key"
    new: gl.tensor
    head: gl.tensor
    PAGE: gl.constexpr

    @gluon.jit
    @no_type_check
    def fill_keys(self, ring, count, at):
        """Load the tile of keys from key `at`, when a stage is free."""
        self.fill(ring, count, at, self.k_desc, 0)

    @gluon.jit
    @no_type_check
    def fill_values(self, ring, count, at):
        """The same for values."""
        self.fill(ring, count, at, self.v_desc, 1)

    @gluon.jit
    @no_type_check
    def fill(self, ring, count, at, new_desc, HALF: gl.constexpr):
        """Load a tile of keys (HALF 0) or values (1), from pages or from the new rows that `new_desc` describes."""
        if at < self.first_new:
            BOX: gl.constexpr = self.pool_desc.block_shape[2]
            BOXES: gl.constexpr = ring.tiles.shape[3] // BOX
            # Page ids are loaded before the wait for a stage, to overlap with it.  `last` avoids reading past the table.
            last = (self.cached - 1) // self.PAGE
            pages = ()
            for box in gl.static_range(BOXES):
                pages = pages + (gl.load(self.table_ptr + gl.minimum((at + box * BOX) // self.PAGE, last)),)
            stage, barrier = ring.begin(count)
            for box in gl.static_range(BOXES):
                begin = at + box * BOX
                slot = (pages[box] * 2 + HALF) * self.PAGE + begin % self.PAGE
                load_tile(
                    self.pool_desc,
                    coordinates(slot, gl.maximum(gl.minimum(self.cached - begin, BOX), 0), first=0, head=self.head),
                    barrier,
                    stage.slice(box * BOX, BOX, dim=2),
                )
        else:
            ring.fill(count, new_desc, self.start, self.new, at - self.first_new, self.head)


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_paged_hopper_forward(
    q_desc,
    k_desc,
    v_desc,
    pool_desc,
    out_desc,
    parts_ptr,
    counter_ptr,
    offsets_ptr,
    cached_ptr,
    indptr_ptr,
    indices_ptr,
    num_targets_ptr,
    half_alpha,
    scale,
    heads,
    pairs,
    tiles,
    group,
    parts,
    META: gl.constexpr,
):
    """The output, or with SPLIT its parts, from cached keys and values in pages and new ones in packed rows."""
    mask = Mask(window=0, CAUSAL=True, HAS_PREFIX=False, HAS_TARGETS=META.HAS_TARGETS, HAS_WINDOW=False)
    problem = PagedProblem(
        offsets_ptr=offsets_ptr,
        cached_ptr=cached_ptr,
        num_targets_ptr=num_targets_ptr,
        mask=mask,
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        group=group,
        BLOCK_N=META.BLOCK_N,
    )
    source = Pages(
        pool_desc=pool_desc,
        k_desc=k_desc,
        v_desc=v_desc,
        cached_ptr=cached_ptr,
        indptr_ptr=indptr_ptr,
        indices_ptr=indices_ptr,
        PAGE=META.PAGE,
    )
    start_warps(
        q_desc=q_desc,
        k_desc=k_desc,
        v_desc=v_desc,
        out_desc=out_desc,
        parts_ptr=parts_ptr,
        source=source,
        problem=problem,
        counter_ptr=counter_ptr,
        parts=parts,
        half_alpha=half_alpha,
        scale=scale,
        META=META,
    )
