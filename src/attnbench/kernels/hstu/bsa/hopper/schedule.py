# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Tile scheduler of the selected branch for Hopper: indices from atomic counters, their meaning, and waits.

(sequence, head) pairs are processed in steps: a step is `group` pairs, which share a buffer of a ring of partial rows.
Tiles of the lists are numbered through all steps, and so are the jobs that sum partial rows.  Programs fetch indices of
both kinds; an index is resolved by a linear search from the previous one.  One warp fetches and searches, with a lane for
each pair of a step, and the data of the next step is prefetched.

    progress  [0] tiles fetched, [1] jobs fetched, then for each step the tiles published, then for each step whether its
              jobs are done, which is the number DONE: one job adds what the others leave of it.  Counters are APART
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.hstu.bsa.hopper.attend_config import APART, PAIRS
from attnbench.kernels.shared.hopper import Argument, aggregate, sync_warps

LANES = gl.constexpr(PAIRS)
"Most pairs of a step: a warp processes them at once, one in each lane."

DONE = gl.constexpr(2**30)
SPREAD = gl.constexpr(APART)
JOBS_FETCHED = gl.constexpr(APART)
COUNTERS = gl.constexpr(2 * APART)


@gluon.jit
@no_type_check
def add(left, right):
    """Combine function of the scan: the sum."""
    return left + right


@gluon.jit
@no_type_check
def fetch(counter_ptr):
    """Fetch the next number into the first lane, for `fetched`; does not wait for it.

    If all lanes had the same address, the assembler would fetch once for the warp and broadcast the number, which waits.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    lanes = gl.arange(0, LANES, LAYOUT)
    one = gl.full([LANES], 1, gl.int32, LAYOUT)
    return gl.atomic_add(counter_ptr + lanes, one, mask=lanes == 0, sem="relaxed")


@gluon.jit
@no_type_check
def fetched(number):
    """The number fetched by `fetch`; waits for it."""
    lanes = gl.arange(0, LANES, gl.BlockedLayout([1], [32], [1], [0]))
    return gl.max(gl.where(lanes == 0, number, 0), 0)


@gluon.jit
@no_type_check
def of_lane(values, lane):
    """The value of one lane."""
    lanes = gl.arange(0, LANES, gl.BlockedLayout([1], [32], [1], [0]))
    return gl.sum(gl.where(lanes == lane, values, 0), 0)


@aggregate
class GridProblem:
    """Launch arguments that describe the pairs and the steps."""

    sequences: gl.tuple
    "`hstu.arguments.Sequences`"
    num_tiles_ptr: Argument
    units: Argument
    "(sequence, head) pairs"
    heads: Argument
    group: Argument
    "pairs of a step"
    steps: Argument
    ring: Argument
    "steps that the ring of partial rows holds"
    HAS_TARGETS: gl.constexpr
    HAS_CACHE: gl.constexpr
    SHARED: gl.constexpr
    "whether all heads share one list"


@aggregate
class Pairs:
    """The pairs of a step, one per lane, for the tile scheduler."""

    tiles: gl.tensor
    key: gl.tensor
    query: gl.tensor
    "first query"
    head: gl.tensor


@aggregate
class JobPairs:
    """The pairs of a step, one per lane, for the job scheduler."""

    tiles: gl.tensor
    key: gl.tensor
    query: gl.tensor
    "first query"
    head: gl.tensor
    key_end: gl.tensor
    query_end: gl.tensor
    targets: gl.tensor


@aggregate
class Cursor:
    """Position of a scheduler in the steps."""

    step: gl.tensor
    place: gl.tensor
    "buffer of the step in the ring"
    before: gl.tensor
    "number of tiles or jobs of earlier steps"
    through: gl.tensor
    "inclusive prefix sums of tiles or jobs over the pairs of the step"
    pairs: Pairs | JobPairs
    ahead: Pairs | JobPairs
    "pairs of the next step"
    JOB_ROWS: gl.constexpr
    "queries of a job; 0: the scheduler counts tiles"


@gluon.jit
@no_type_check
def pairs_of(step, problem, JOB_ROWS: gl.constexpr):
    """`Pairs` of a step, or `JobPairs` with JOB_ROWS; does not wait for the loads."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    lanes = gl.arange(0, LANES, LAYOUT)
    unit = step * problem.group + lanes
    there = (lanes < problem.group) & (unit < problem.units)
    number = unit // problem.heads
    tiles = gl.load(problem.num_tiles_ptr + (number if problem.SHARED else unit), mask=there, other=0)
    key = gl.load(problem.sequences.offsets_ptr + number, mask=there, other=0).to(gl.int32)
    query = key
    if problem.HAS_CACHE:
        query = gl.load(problem.sequences.offsets_q_ptr + number, mask=there, other=0).to(gl.int32)
    head = unit - number * problem.heads
    if JOB_ROWS == 0:
        return Pairs(tiles=tiles, key=key, query=query, head=head)
    else:
        key_end = gl.load(problem.sequences.offsets_ptr + 1 + number, mask=there, other=0).to(gl.int32)
        query_end = key_end
        targets = tiles
        if problem.HAS_CACHE:
            query_end = gl.load(problem.sequences.offsets_q_ptr + 1 + number, mask=there, other=0).to(gl.int32)
        if problem.HAS_TARGETS:
            targets = gl.load(problem.sequences.num_targets_ptr + number, mask=there, other=0).to(gl.int32)
        return JobPairs(
            tiles=tiles, key=key, query=query, head=head, key_end=key_end, query_end=query_end, targets=targets
        )


@gluon.jit
@no_type_check
def through_of(pairs, JOB_ROWS: gl.constexpr):
    """Inclusive prefix sums of the tiles (or jobs of JOB_ROWS) of a step over its pairs.

    A step has at least one job, that of its first pair, even if it has no rows.
    """
    many = pairs.tiles
    if JOB_ROWS > 0:
        lanes = gl.arange(0, LANES, gl.BlockedLayout([1], [32], [1], [0]))
        many = (pairs.query_end - pairs.query + JOB_ROWS - 1) // JOB_ROWS
        many = gl.where(lanes == 0, gl.maximum(many, 1), many)
    return gl.associative_scan(many, 0, add)


@gluon.jit
@no_type_check
def begin(problem, JOB_ROWS: gl.constexpr):
    """Initial position for `seek`."""
    none = gl.to_tensor(0)
    pairs = pairs_of(0, problem, JOB_ROWS)
    ahead = pairs_of(1, problem, JOB_ROWS)
    return Cursor(
        step=none,
        place=none,
        before=none,
        through=through_of(pairs, JOB_ROWS),
        pairs=pairs,
        ahead=ahead,
        JOB_ROWS=JOB_ROWS,
    )


class SoughtPosition(NamedTuple):
    """The position of a fetched number."""

    cursor: Any
    "at the number's step"
    lane: Any
    "lane of the pair within the step"
    inside: Any
    "index within the pair"


@gluon.jit
@no_type_check
def seek(number, cursor, problem):
    """Advance from the current step to that of a fetched number, or past the last step: `SoughtPosition`."""
    JOB_ROWS: gl.constexpr = cursor.JOB_ROWS
    step, place, before = cursor.step, cursor.place, cursor.before
    through, pairs, ahead = cursor.through, cursor.pairs, cursor.ahead
    total = gl.max(through, 0)
    while (number >= before + total) & (step < problem.steps):
        before += total
        step += 1
        place = gl.where(place + 1 == problem.ring, 0, place + 1)
        through = through_of(ahead, JOB_ROWS)
        total = gl.max(through, 0)
        pairs = ahead
        ahead = pairs_of(step + 1, problem, JOB_ROWS)
    inside = number - before
    passed = through <= inside
    lane = gl.sum(passed.to(gl.int32), 0)
    inside -= gl.max(gl.where(passed, through, 0), 0)
    cursor = Cursor(step=step, place=place, before=before, through=through, pairs=pairs, ahead=ahead, JOB_ROWS=JOB_ROWS)
    return SoughtPosition(cursor=cursor, lane=lane, inside=inside)


@gluon.jit
@no_type_check
def wait_for(counters, first, last, needed):
    """Wait until counters `first` to `last`, at most LANES, reach `needed`; then acquire what was written before."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    at = first + gl.arange(0, LANES, LAYOUT)
    wanted = at <= last
    while gl.min(gl.load(counters + at * SPREAD, mask=wanted, other=DONE, volatile=True), 0) < needed:
        pass
    gl.atomic_add(counters + at * SPREAD, gl.zeros([LANES], gl.int32, LAYOUT), mask=wanted, sem="acquire")
    sync_warps()
