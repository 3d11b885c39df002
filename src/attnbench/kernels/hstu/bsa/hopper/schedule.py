# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Numbers drawn in the selected branch for Hopper, what they stand for, and counters between programs.

Pairs of sequence and head are taken some at a time: a step is `group` pairs, which have a place in a ring of partial
rows.  Tiles of the lists are numbered through the steps, and so are the jobs that add partial rows up.  Programs
draw numbers of both kinds; where a number stands is found by walking on from the last one.  One warp draws and walks,
a lane for each pair of a step, and what it walks over is loaded a step before.

    progress  [0] tiles drawn, [1] jobs drawn, then of each step the tiles published, then of each step whether its
              jobs are done, which is the number DONE: one adds what the others leave of it.  Counters lie APART
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.hstu.bsa.hopper.attend_config import APART, PAIRS
from attnbench.kernels.shared.hopper import sync_warps

LANES = gl.constexpr(PAIRS)
"Pairs of a step, at most: a warp looks at them at once."

DONE = gl.constexpr(2**30)
SPREAD = gl.constexpr(APART)
JOBS_DRAWN = gl.constexpr(APART)
COUNTERS = gl.constexpr(2 * APART)


@gluon.jit
@no_type_check
def add(left, right):
    """Their sum."""
    return left + right


@gluon.jit
@no_type_check
def draw(counter_ptr):
    """The next number, in the first lane, for `drawn`; nobody waits for it here.

    Were all lanes' addresses one, the assembler would draw for the warp and hand the number round at once.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    lanes = gl.arange(0, LANES, LAYOUT)
    one = gl.full([LANES], 1, gl.int32, LAYOUT)
    return gl.atomic_add(counter_ptr + lanes, one, mask=lanes == 0, sem="relaxed")


@gluon.jit
@no_type_check
def drawn(number):
    """The number that was drawn."""
    lanes = gl.arange(0, LANES, gl.BlockedLayout([1], [32], [1], [0]))
    return gl.max(gl.where(lanes == 0, number, 0), 0)


@gluon.jit
@no_type_check
def of_lane(values, lane):
    """A pair's number."""
    lanes = gl.arange(0, LANES, gl.BlockedLayout([1], [32], [1], [0]))
    return gl.sum(gl.where(lanes == lane, values, 0), 0)


@gluon.jit
@no_type_check
def pairs_of(step, problem, JOB_ROWS: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_CACHE: gl.constexpr,
             SHARED: gl.constexpr):
    """What is loaded of a step's pairs, each in its lane; nobody waits for it here.

    Returns:
        Tiles, first key, first query, head; for jobs also the ends of keys and of queries, and targets.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    offsets_ptr, offsets_q_ptr, num_targets_ptr, num_tiles_ptr, units, heads, group, _steps, _ring = problem
    lanes = gl.arange(0, LANES, LAYOUT)
    unit = step * group + lanes
    there = (lanes < group) & (unit < units)
    number = unit // heads
    tiles = gl.load(num_tiles_ptr + (number if SHARED else unit), mask=there, other=0)
    key = gl.load(offsets_ptr + number, mask=there, other=0).to(gl.int32)
    query = key
    if HAS_CACHE:
        query = gl.load(offsets_q_ptr + number, mask=there, other=0).to(gl.int32)
    common = (tiles, key, query, unit - number * heads)
    if JOB_ROWS == 0:
        return common
    else:
        key_end = gl.load(offsets_ptr + 1 + number, mask=there, other=0).to(gl.int32)
        query_end = key_end
        targets = tiles
        if HAS_CACHE:
            query_end = gl.load(offsets_q_ptr + 1 + number, mask=there, other=0).to(gl.int32)
        if HAS_TARGETS:
            targets = gl.load(num_targets_ptr + number, mask=there, other=0).to(gl.int32)
        return common + (key_end, query_end, targets)


@gluon.jit
@no_type_check
def through_of(pairs, JOB_ROWS: gl.constexpr):
    """Tiles (or jobs of JOB_ROWS) of a step up to and with each pair.

    A step has a job at least: its first pair's, if only of no rows.
    """
    many = pairs[0]
    if JOB_ROWS > 0:
        lanes = gl.arange(0, LANES, gl.BlockedLayout([1], [32], [1], [0]))
        many = (pairs[5] - pairs[2] + JOB_ROWS - 1) // JOB_ROWS
        many = gl.where(lanes == 0, gl.maximum(many, 1), many)
    return gl.associative_scan(many, 0, add)


@gluon.jit
@no_type_check
def begin(problem, JOB_ROWS: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_CACHE: gl.constexpr,
          SHARED: gl.constexpr):
    """Where `seek` starts.

    Returns:
        The step and its place in the ring; how many tiles or jobs are of earlier steps, and how many more up to each
        pair of it; its pairs, and those of the next one.
    """
    none = gl.to_tensor(0)
    pairs = pairs_of(0, problem, JOB_ROWS, HAS_TARGETS, HAS_CACHE, SHARED)
    ahead = pairs_of(1, problem, JOB_ROWS, HAS_TARGETS, HAS_CACHE, SHARED)
    return none, none, none, through_of(pairs, JOB_ROWS), pairs, ahead


@gluon.jit
@no_type_check
def seek(number, at, problem, JOB_ROWS: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_CACHE: gl.constexpr,
         SHARED: gl.constexpr):
    """Walk from the step where one stands to that of a drawn number, or behind the last.

    Returns:
        Where that is; then lane of the pair within the step, and the number within the pair.
    """
    step, place, before, through, pairs, ahead = at
    steps = problem[7]
    total = gl.max(through, 0)
    while (number >= before + total) & (step < steps):
        before += total
        step += 1
        place = gl.where(place + 1 == problem[8], 0, place + 1)
        through = through_of(ahead, JOB_ROWS)
        total = gl.max(through, 0)
        pairs = ahead
        ahead = pairs_of(step + 1, problem, JOB_ROWS, HAS_TARGETS, HAS_CACHE, SHARED)
    inside = number - before
    passed = through <= inside
    lane = gl.sum(passed.to(gl.int32), 0)
    inside -= gl.max(gl.where(passed, through, 0), 0)
    return (step, place, before, through, pairs, ahead), lane, inside


@gluon.jit
@no_type_check
def wait_for(counters, first, last, needed):
    """Until counters `first` to `last`, LANES at most, have come to `needed`; what they tell of is seen then."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    at = first + gl.arange(0, LANES, LAYOUT)
    wanted = at <= last
    while gl.min(gl.load(counters + at * SPREAD, mask=wanted, other=DONE, volatile=True), 0) < needed:
        pass
    gl.atomic_add(counters + at * SPREAD, gl.zeros([LANES], gl.int32, LAYOUT), mask=wanted, sem="acquire")
    sync_warps()
