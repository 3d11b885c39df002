# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Work items of the dense HSTU forward for Hopper: their query and key tiles, and how they are published."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.hstu.tiles import KeyTiles, keys_of_rows, masked_tile, tiles_of_rows
from attnbench.kernels.shared.hopper import ROWS, aggregate
from attnbench.kernels.shared.rows import section_of


class WorkItem(NamedTuple):
    """A `Work` as it is published: its integers and those of its `KeyTiles`."""

    query_start: Any
    head: Any
    keys: Any
    first_query: Any
    seen: Any
    prefix: Any
    start: Any
    begin: Any
    whole: Any
    split: Any
    end: Any
    own: Any
    masked: Any


WORK_FIELDS = gl.constexpr(WorkItem._fields)


class TilesSeen(NamedTuple):
    """How many of a work item's key tiles a warpgroup sees."""

    seen: Any
    "number of tiles, from the first, that the warpgroup's rows see"
    unseen: Any
    unmasked: Any
    "number of the work item's tiles that mask nothing"


@aggregate
class Work:
    """A work item: a query tile, and the key tiles that it sees."""

    query_start: gl.tensor
    "first query of the sequence in the packed tensors"
    head: gl.tensor
    "head of the output: for the part-th part of the keys, part * heads + head"
    keys: gl.tensor
    "of the sequence"
    first_query: gl.tensor
    "position of query 0"
    seen: gl.tensor
    "rows before the targets"
    prefix: gl.tensor
    start: gl.tensor
    "first query of the item"
    tiles: gl.tuple
    "key tiles, as `hstu.tiles.KeyTiles`"

    @gluon.jit
    @no_type_check
    def share(self, part, parts, heads):
        """The part-th of the equal shares of the key tiles, in the order of the keys, those of targets last."""
        tiles = self.tiles
        before = tiles.end - tiles.begin
        behind = tiles.masked - (tiles.whole - tiles.begin + tiles.end - tiles.split)
        low = part * (before + behind) // parts
        high = (part + 1) * (before + behind) // parts
        begin = tiles.begin + gl.minimum(low, before)
        end = tiles.begin + gl.minimum(high, before)
        whole = gl.minimum(gl.maximum(tiles.whole, begin), end)
        split = gl.minimum(gl.maximum(tiles.split, begin), end)
        own = gl.maximum(low - before, 0)
        masked = whole - begin + end - split + gl.maximum(high - before, 0) - own
        return Work(
            query_start=self.query_start,
            head=part * heads + self.head,
            keys=self.keys,
            first_query=self.first_query,
            seen=self.seen,
            prefix=self.prefix,
            start=self.start,
            tiles=KeyTiles(begin=begin, whole=whole, split=split, end=end, own=tiles.own + own, masked=masked),
        )

    @gluon.jit
    @no_type_check
    def publish(self, queue, turn):
        """Publish this as the turn-th item, for `read_work`."""
        item = WorkItem(
            query_start=self.query_start,
            head=self.head,
            keys=self.keys,
            first_query=self.first_query,
            seen=self.seen,
            prefix=self.prefix,
            start=self.start,
            begin=self.tiles.begin,
            whole=self.tiles.whole,
            split=self.tiles.split,
            end=self.tiles.end,
            own=self.tiles.own,
            masked=self.tiles.masked,
        )
        queue.publish(turn, item)

    @gluon.jit
    @no_type_check
    def unmasked(self):
        """How many key tiles mask nothing."""
        return self.tiles.split - self.tiles.whole

    @gluon.jit
    @no_type_check
    def key_tile(self, index, mask):
        """The index-th key tile; masked tiles are the last."""
        unmasked = self.unmasked()
        tile = masked_tile(index - unmasked, self.tiles, mask.HAS_TARGETS, mask.HAS_WINDOW)
        return gl.where(index < unmasked, self.tiles.whole + index, tile)

    @gluon.jit
    @no_type_check
    def rows_of(self, done, WARPGROUP: gl.constexpr, GROUPS: gl.constexpr):
        """A warpgroup's first query, and the end of its rows: it has none of the rows before query 0.

        The order of rows alternates: the warpgroup whose rows see least in one item has those that see most in the next.
        This is the done-th item.
        """
        first = self.start + gl.where(done % 2 == 0, WARPGROUP, GROUPS - 1 - WARPGROUP) * ROWS
        return gl.maximum(first, 0), gl.where(first < 0, 0, self.keys - self.first_query)

    @gluon.jit
    @no_type_check
    def tiles_seen(self, mask, done, WARPGROUP: gl.constexpr, BLOCK_N: gl.constexpr, GROUPS: gl.constexpr):
        """The `TilesSeen` of a warpgroup's rows."""
        tiles = self.tiles
        first, queries = self.rows_of(done, WARPGROUP, GROUPS)
        last = gl.minimum(first + ROWS, queries) - 1 + self.first_query
        reach = keys_of_rows(
            first=first + self.first_query,
            last=last,
            prefix=self.prefix,
            seen=self.seen,
            window=mask.window,
            CAUSAL=mask.CAUSAL,
            HAS_PREFIX=mask.HAS_PREFIX,
            HAS_WINDOW=mask.HAS_WINDOW,
        )
        unseen = gl.maximum(gl.minimum(tiles.end - (reach.high + BLOCK_N - 1) // BLOCK_N, tiles.end - tiles.split), 0)
        if mask.HAS_TARGETS:
            # Targets see themselves, in the tiles after these; a warpgroup without targets skips those tiles.
            unseen = gl.where(
                last >= self.seen, 0, unseen + tiles.masked - (tiles.whole - tiles.begin + tiles.end - tiles.split)
            )
        total = tiles.masked + tiles.split - tiles.whole
        unseen = gl.where(first < queries, unseen, total)
        return TilesSeen(seen=total - unseen, unseen=unseen, unmasked=tiles.split - tiles.whole)


@gluon.jit
@no_type_check
def read_work(queue, turn):
    """The turn-th work item, which must have been waited for.

    Read again wherever it is needed: a thread of three warpgroups has no registers for its thirteen numbers.
    """
    return Work(
        query_start=queue.number(turn, "query_start"),
        head=queue.number(turn, "head"),
        keys=queue.number(turn, "keys"),
        first_query=queue.number(turn, "first_query"),
        seen=queue.number(turn, "seen"),
        prefix=queue.number(turn, "prefix"),
        start=queue.number(turn, "start"),
        tiles=KeyTiles(
            begin=queue.number(turn, "begin"),
            whole=queue.number(turn, "whole"),
            split=queue.number(turn, "split"),
            end=queue.number(turn, "end"),
            own=queue.number(turn, "own"),
            masked=queue.number(turn, "masked"),
        ),
    )


class Located(NamedTuple):
    """A work item of the grid, and its sequence."""

    work: Any
    "as `Work`"
    sequence: Any
    "index of the sequence"
    head: Any
    key_start: Any
    "first key of the sequence in the packed tensors"
    has_rows: Any


@gluon.jit
@no_type_check
def work_at(at, problem, parts, GROUPS: gl.constexpr, BLOCK_N: gl.constexpr, SPLIT: gl.constexpr):
    """The at-th work item of the grid, as `Located`.

    Tiles are indexed from the sequence end, so that the item whose first warpgroups have no rows (before query 0) is the one
    that sees least.
    """
    mask = problem.mask
    part = 0
    if SPLIT:
        part = at % parts
        at = at // parts
    tile, pair = section_of(at, problem.tiles, problem.pairs, problem.group)
    number = pair // problem.heads
    head = pair - number * problem.heads
    bounds = problem.sequence_of(number)
    blocks = (bounds.keys - bounds.first_query + ROWS - 1) // ROWS
    after = (blocks + GROUPS - 1) // GROUPS - (problem.tiles - 1 - tile)
    start = (blocks - after * GROUPS) * ROWS
    first = bounds.first_query + start
    last = gl.maximum(gl.minimum(first + ROWS * GROUPS, bounds.keys) - 1, 0)  # without keys it is not used
    key_tiles = tiles_of_rows(
        first=gl.maximum(first, bounds.first_query),
        last=last,
        prefix=bounds.prefix,
        seen=bounds.seen,
        window=mask.window,
        CAUSAL=mask.CAUSAL,
        HAS_PREFIX=mask.HAS_PREFIX,
        HAS_TARGETS=mask.HAS_TARGETS,
        HAS_WINDOW=mask.HAS_WINDOW,
        BLOCK_N=BLOCK_N,
    )
    work = Work(
        query_start=bounds.query_start.to(gl.int32),
        head=head,
        keys=bounds.keys,
        first_query=bounds.first_query,
        seen=bounds.seen,
        prefix=bounds.prefix,
        start=start,
        tiles=key_tiles,
    )
    if SPLIT:
        work = work.share(part, parts, problem.heads)
    return Located(work=work, sequence=number, head=head, key_start=bounds.key_start.to(gl.int32), has_rows=after > 0)
