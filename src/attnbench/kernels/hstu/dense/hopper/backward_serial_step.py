# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""A key tile of a serial reduction, and its sums of dQ, for `hopper.backward_step.step`; see `hopper.backward_serial`."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from attnbench.kernels.hstu.dense.hopper.backward_step import turned
from attnbench.kernels.hstu.dense.hopper.tiles import hide
from attnbench.kernels.shared.hopper import (
    ROWS,
    Argument,
    WorkQueue,
    add_tile,
    aggregate,
    coordinates,
    flat,
    load_tile,
    store_tile,
    sync_warps,
)


class KeyTileItem(NamedTuple):
    """A `KeyTile` as it is published, and which tiles of 64 queries it is the first or the last to add dQ to."""

    head: Any
    key_start: Any
    query_start: Any
    keys: Any
    first_query: Any
    prefix: Any
    seen: Any
    start: Any
    front: Any
    begin: Any
    whole: Any
    split: Any
    end: Any
    front_before: Any
    "tiles [0, front_before) and, from begin_before on, all have dQ from earlier key tiles"
    begin_before: Any
    done_from: Any
    "no later key tile adds to tiles from this one on"


FIRST = gl.constexpr(1)
LAST = gl.constexpr(2)
NONE = gl.constexpr(4)
"Kinds of dQ of a step, see `SerialSums.fetch`."

ITEM_FIELDS = gl.constexpr(KeyTileItem._fields)


@aggregate
class SerialPlace:
    """Where a program sums dQ."""

    sums_desc: tma.tensor_descriptor
    dq_desc: tma.tensor_descriptor
    staging: gl.shared_memory_descriptor
    "tiles of sums, one for each warpgroup"
    rounded: gl.shared_memory_descriptor
    "tiles of dQ, likewise"
    fetched: gl.shared_memory_descriptor
    "mbarriers, likewise: the sums of a step's rows are loaded, or it needs none"
    queue: WorkQueue
    rows: Argument
    "of a program in the workspace"
    dq_scale: Argument


@aggregate
class SerialSums:
    """Sums of dQ of one key tile, for `step`."""

    place: SerialPlace
    before: gl.tensor
    "steps of earlier key tiles"
    turn: gl.tensor
    "number of earlier key tiles"
    LAG: gl.constexpr

    @gluon.jit
    @no_type_check
    def key_place(self, k_ring):
        """Where keys and values are in their rings."""
        return 2 * self.turn % k_ring.STAGES

    @gluon.jit
    @no_type_check
    def index(self, count):
        """Which step of its key tile the count-th step is."""
        return count - self.before

    @gluon.jit
    @no_type_check
    def stored(self, count):
        """How many times dSᵀ was stored, and `fetch` called, before the count-th step: with LAG once more a key tile."""
        if self.LAG:
            count += self.turn
        return count

    @gluon.jit
    @no_type_check
    def fetches(self, index):
        """How many times `fetch` was called before that for the index-th step."""
        if self.LAG:
            index += self.turn + 1
        return self.before + index

    @gluon.jit
    @no_type_check
    def at(self, tile, column):
        """Coordinates of the program's sums of a tile of queries."""
        rows = self.place.rows
        return coordinates(gl.program_id(0) * rows, rows, tile * ROWS, 0, column)

    @gluon.jit
    @no_type_check
    def fetch(self, consumer, work, index, WARPGROUP: gl.constexpr):
        """Start to load the sums that dQ of the index-th step completes, if there are any.

        Returns a kind: FIRST if no earlier key tile has added to dQ of these queries, plus LAST if no later one will; NONE
        if there is no dQ.
        """
        place = self.place
        queue = place.queue
        HALF: gl.constexpr = consumer.rings.k.COLUMNS // 2
        tile = work.query_tile(index, consumer.problem.mask)
        first = tile < queue.number(self.turn, "begin_before")
        if consumer.problem.mask.HAS_PREFIX:
            first = first & (tile >= queue.number(self.turn, "front_before"))
        last = tile >= queue.number(self.turn, "done_from")
        kind = gl.where(first, FIRST, 0) + gl.where(last, LAST, 0)
        if self.LAG:
            kind = gl.where(index < 0, NONE, kind)  # before the first step
        # Every step completes a phase, so that its parity follows from the number of steps.
        if kind == LAST:
            # The previous sums have been read; several threads may have stored parts of them.
            tma.store_wait(0)
            sync_warps()
            mbarrier.expect(place.fetched.index(WARPGROUP), ROWS * HALF * 4)
            load_tile(
                place.sums_desc,
                self.at(tile, WARPGROUP * HALF),
                place.fetched.index(WARPGROUP),
                place.staging.index(WARPGROUP),
            )
        else:
            mbarrier.expect(place.fetched.index(WARPGROUP), 0)
        return kind

    @gluon.jit
    @no_type_check
    def stage(self, part, consumer, kind, index, WARPGROUP: gl.constexpr):
        """Copy this warpgroup's half of dQ to shared memory, completed and rounded if this key tile is the last."""
        place = self.place
        sums = turned(flat(place.staging.index(WARPGROUP)), consumer.rings.k)
        if (kind & LAST) != 0:
            if kind == LAST:
                mbarrier.wait(place.fetched.index(WARPGROUP), self.fetches(index) & 1)
                part += sums.load(part.type.layout)
            turned(flat(place.rounded.index(WARPGROUP)), consumer.rings.k).store(
                (part * place.dq_scale).to(place.dq_desc.dtype)
            )
        else:
            sums.store(part)

    @gluon.jit
    @no_type_check
    def leave(self, consumer, work, kind, index, WARPGROUP: gl.constexpr):
        """Start to store or add it, as that of the index-th step; the warps have synchronized."""
        place = self.place
        queue = place.queue
        HALF: gl.constexpr = consumer.rings.k.COLUMNS // 2
        tile = work.query_tile(index, consumer.problem.mask)
        if (kind & LAST) != 0:
            queries = queue.number(self.turn, "keys") - queue.number(self.turn, "first_query")
            start = queue.number(self.turn, "query_start")
            head = queue.number(self.turn, "head")
            store_tile(
                place.dq_desc,
                coordinates(start, queries, tile * ROWS, head, WARPGROUP * HALF),
                place.rounded.index(WARPGROUP),
            )
        elif kind == FIRST:
            store_tile(place.sums_desc, self.at(tile, WARPGROUP * HALF), place.staging.index(WARPGROUP))
        elif kind == 0:
            add_tile(place.sums_desc, self.at(tile, WARPGROUP * HALF), place.staging.index(WARPGROUP))


@aggregate
class PublishedTile:
    """A key tile that the producer has published, for `step`: most of its numbers are read wherever they are needed."""

    queue: WorkQueue
    turn: gl.tensor
    front: gl.tensor
    begin: gl.tensor

    @gluon.jit
    @no_type_check
    def query_tile(self, index, mask):
        """The index-th query tile that sees the keys."""
        tile = self.begin + index
        if mask.HAS_PREFIX:
            tile = gl.where(index < self.front, index, tile - self.front)
        return tile

    @gluon.jit
    @no_type_check
    def masked(self, scores, hidden, tile, offset, mask):
        """As `KeyTile.masked`."""
        queue = self.queue
        if (tile < queue.number(self.turn, "whole")) | (tile >= queue.number(self.turn, "split")):
            first = queue.number(self.turn, "first_query")
            scores = hide(
                scores,
                hidden,
                queue.number(self.turn, "start") - first + offset,
                tile * ROWS,
                queue.number(self.turn, "prefix") - first,
                queue.number(self.turn, "seen") - first,
                mask,
                ROWS_DOWN=False,
            )
        return scores
