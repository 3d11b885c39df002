# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Dense HSTU attention forward for Hopper: one warp loads, two or three warpgroups of 64 rows each attend.

The sums are those of portable.forward.  What differs is who waits for whom:

    loader        rows of queries, then tiles of keys and values, each as soon as its place in the ring is free
    warpgroup     S' = Q K'ᵀ and O += A V are issued together; SiLU of S' is worked out beside the second, and beside
                  the products of the other warpgroups

A job is one tile of 64 rows a warpgroup.  A program has one, or draws them, long ones first; many that the longest
sequence has the others have not, and the loader passes these over.  It tells the warpgroups what a job is, for they
would spend a sixth of a short one on finding out.  Where shared memory has ROOM for two tiles of queries it is a job
ahead.

Keys go from the first to the last, masked tiles last.  A warpgroup passes over the tiles at the end that none of its
rows sees: it is done before the others, so that what a job begins and ends with comes beside their products, and has
the longest rows of the next job.  No sequence's last tile is half empty, but its first, which sees least.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attnbench.kernels.hstu.dense.hopper.tiles import hide
from attnbench.kernels.hstu.tiles import COUNTS, keys_of_rows, masked_tile, sequence, silu, tiles_of_rows
from attnbench.kernels.shared.hopper import (
    ROWS,
    draw,
    fill,
    forget,
    give_back,
    hear,
    leave,
    number_of,
    pass_over,
    put,
    ring_of,
    sync_warps,
    take,
    tell,
    tickets_for,
    tile_of,
    wait_tile,
)
from attnbench.kernels.shared.rows import section_of

DRAWN = gl.constexpr(4)
"The next job is drawn when so many tiles are left to load."


@gluon.jit
@no_type_check
def job_at(at, problem, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr,
           HAS_WINDOW: gl.constexpr, HAS_CACHE: gl.constexpr, GROUPS: gl.constexpr, BLOCK_N: gl.constexpr):
    """The at-th job as warpgroups are told it, where its keys begin, and whether it has rows.

    A sequence's tiles are counted from its end, so that the one whose first warpgroups have no rows, before query 0, is
    the one that sees least.
    """
    offsets_ptr, offsets_q_ptr, num_targets_ptr, contextual_len, window, heads, pairs, tiles, group = problem
    tile, pair = section_of(at, tiles, pairs, group)
    number = pair // heads
    key_start, query_start, keys, first_query, prefix, seen = sequence(
        offsets_ptr, offsets_q_ptr, num_targets_ptr, number, contextual_len, HAS_PREFIX, HAS_TARGETS, HAS_CACHE)
    blocks = (keys - first_query + ROWS - 1) // ROWS
    after = (blocks + GROUPS - 1) // GROUPS - (tiles - 1 - tile)
    start = (blocks - after * GROUPS) * ROWS
    first = first_query + start
    last = gl.maximum(gl.minimum(first + ROWS * GROUPS, keys) - 1, 0)  # of no keys nothing is looked at
    begin, whole, split, end, own, masked = tiles_of_rows(
        gl.maximum(first, first_query), last, prefix, seen, window, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW,
        BLOCK_N)
    job = (query_start.to(gl.int32), pair - number * heads, keys, first_query, seen, prefix, start, begin, whole, split,
           end, own, masked)
    return job, key_start.to(gl.int32), after > 0


@gluon.jit
@no_type_check
def told_job(tickets, turn):
    """The turn-th job: its sequence's first query among all, or -1 if there is no further job; head; keys;
    position of query 0; rows before the targets; prefix; its own first query; and its tiles, as of `tiles_of_rows`.

    Read anew wherever it is needed: thirteen numbers are more than a thread of three warpgroups has registers for.
    """
    return (number_of(tickets, turn, 0), number_of(tickets, turn, 1), number_of(tickets, turn, 2),
            number_of(tickets, turn, 3), number_of(tickets, turn, 4), number_of(tickets, turn, 5),
            number_of(tickets, turn, 6), number_of(tickets, turn, 7), number_of(tickets, turn, 8),
            number_of(tickets, turn, 9), number_of(tickets, turn, 10), number_of(tickets, turn, 11),
            number_of(tickets, turn, 12))


@gluon.jit
@no_type_check
def tile_at(index, job, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr):
    """The index-th tile of a job: the masked ones last."""
    begin, whole, split, end, own = job[7], job[8], job[9], job[10], job[11]
    unmasked = split - whole
    tile = masked_tile(index - unmasked, begin, whole, split, end, own, HAS_TARGETS, HAS_WINDOW)
    return gl.where(index < unmasked, whole + index, tile)


@gluon.jit
@no_type_check
def share_of(job, done, WHICH: gl.constexpr, GROUPS: gl.constexpr):
    """A warpgroup's first query of the done-th job, and the one where they end for it: none of those before the first.

    Who has the rows that see least in one job has those that see most in the next.
    """
    first = job[6] + gl.where(done % 2 == 0, WHICH, GROUPS - 1 - WHICH) * ROWS
    return gl.maximum(first, 0), gl.where(first < 0, 0, job[2] - job[3])


@gluon.jit
@no_type_check
def seen_of(job, window, done, WHICH: gl.constexpr, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr,
            HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr, BLOCK_N: gl.constexpr, GROUPS: gl.constexpr):
    """How many of a job's tiles, the first, show a warpgroup anything, how many do not, and how many mask nothing."""
    _start, _head, _keys, first_query, seen, prefix, _first, begin, whole, split, end, _own, masked = job
    first, queries = share_of(job, done, WHICH, GROUPS)
    last = gl.minimum(first + ROWS, queries) - 1 + first_query
    _low, _all_low, _all_high, high = keys_of_rows(first + first_query, last, prefix, seen, window, CAUSAL, HAS_PREFIX,
                                                   HAS_WINDOW)
    unseen = gl.maximum(gl.minimum(end - (high + BLOCK_N - 1) // BLOCK_N, end - split), 0)
    if HAS_TARGETS:
        # Targets have themselves, in the tiles behind; rows without one have no tile there.
        unseen = gl.where(last >= seen, 0, unseen + masked - (whole - begin + end - split))
    total = masked + split - whole
    unseen = gl.where(first < queries, unseen, total)
    return total - unseen, unseen, split - whole


@gluon.jit
@no_type_check
def load_job(given, job, key_start, count, done, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr,
             BLOCK_N: gl.constexpr, GROUPS: gl.constexpr, DRAWS: gl.constexpr):
    """Load a job's tiles; how many tiles of keys there have been then, and the next ticket if drawn, else -1."""
    q_desc, k_desc, v_desc, rings, _problem, _tickets, drawn_ptr = given
    q_rings, k_ring, v_ring = rings
    AHEAD: gl.constexpr = q_rings[0][0].shape[0] > 1
    query_start, head, keys = job[0], job[1], job[2]
    total = job[12] + job[9] - job[8]
    at = tile_at(0, job, HAS_TARGETS, HAS_WINDOW) * BLOCK_N
    following = -1
    # Without room for two the queries come after the first keys: the last output may have to leave before.
    if not AHEAD and total > 0:
        fill(k_ring, count, k_desc, key_start, keys, at, head)
    for which in gl.static_range(GROUPS):
        first, queries = share_of(job, done, which, GROUPS)
        fill(q_rings[which], done, q_desc, query_start, queries, first, head)
    if AHEAD and total > 0:
        fill(k_ring, count, k_desc, key_start, keys, at, head)
    # Keys a tile before values, as they are read: their place is free before that of the values.
    for index in range(total):
        # Here, for the answer comes while the last tiles wait for room; earlier, and a long job would hold the next one
        # back from programs that are done before.
        if DRAWS and index == gl.maximum(total - DRAWN, 0):
            following = draw(drawn_ptr)
        after = at
        if index + 1 < total:
            after = tile_at(index + 1, job, HAS_TARGETS, HAS_WINDOW) * BLOCK_N
            fill(k_ring, count + 1, k_desc, key_start, keys, after, head)
        fill(v_ring, count, v_desc, key_start, keys, at, head)
        at = after
        count += 1
    return count, following


@gluon.jit
@no_type_check
def load(given, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr,
         HAS_CACHE: gl.constexpr, BLOCK_N: gl.constexpr, GROUPS: gl.constexpr, DRAWS: gl.constexpr):
    """The loader's work: it finds a job, tells the warpgroups of it, and loads; by ticket until there is none."""
    problem = given[4]
    tickets = given[5]
    jobs = problem[6] * problem[7]
    at = gl.program_id(0)
    count = 0
    done = 0
    while at < jobs:
        job, key_start, there = job_at(at, problem, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, GROUPS,
                                       BLOCK_N)
        following = -1
        if there:
            tell(tickets, done, job)
            count, following = load_job(given, job, key_start, count, done, HAS_TARGETS, HAS_WINDOW, BLOCK_N, GROUPS,
                                        DRAWS)
            done += 1
        if not DRAWS:
            following = jobs
        elif following < 0:  # a job without rows or without keys
            following = draw(given[6])
        at = following
    tell(tickets, done, (-1,))


@gluon.jit
@no_type_check
def weigh(scores, given, index, unmasked, done, WHICH: gl.constexpr, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr,
          HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr, APPROXIMATE: gl.constexpr, BLOCK_N: gl.constexpr,
          GROUPS: gl.constexpr):
    """SiLU of the scores of a job's index-th tile, 0 where hidden."""
    if index >= unmasked:
        job = told_job(given[6], done)
        first, _queries = share_of(job, done, WHICH, GROUPS)
        at = tile_at(index, job, HAS_TARGETS, HAS_WINDOW) * BLOCK_N
        # Whose SiLU is 0.
        scores = hide(scores, 0.0, job[3] + first, at, job[5], job[4], given[3], True, CAUSAL, HAS_PREFIX, HAS_TARGETS,
                      HAS_WINDOW)
    return silu(scores, given[4], APPROXIMATE)


@gluon.jit
@no_type_check
def through_tiles(given, total, unmasked, count, done, WHICH: gl.constexpr, CAUSAL: gl.constexpr,
                  HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr,
                  APPROXIMATE: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_V: gl.constexpr, GROUPS: gl.constexpr):
    """The sums over the first `total` tiles of a job, one at least; and the count after them."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    q_rings, k_ring, v_ring = given[2]
    q = tile_of(q_rings[WHICH], done)
    none = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    acc = gl.zeros([ROWS, BLOCK_V], gl.float32, OUT)
    wait_tile(k_ring, count)
    scores = warpgroup_mma(q, tile_of(k_ring, count).permute([1, 0]), none, use_acc=False, is_async=True)
    if q_rings[WHICH][0].shape[0] > 1:
        leave(q_rings[WHICH], done)
    scores = warpgroup_mma_wait(0, [scores])
    give_back(k_ring, count)
    weights = weigh(scores, given, 0, unmasked, done, WHICH, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, APPROXIMATE,
                    BLOCK_N, GROUPS)
    for index in range(1, total):
        wait_tile(k_ring, count + 1)
        wait_tile(v_ring, count)
        scores = warpgroup_mma(q, tile_of(k_ring, count + 1).permute([1, 0]), none, use_acc=False, is_async=True)
        # Rounded here, not where they came about: carried in 16 bits, each would be packed anew.
        rounded = gl.convert_layout(weights.to(q.dtype), WEIGHTS)
        acc = warpgroup_mma(rounded, tile_of(v_ring, count), acc, is_async=True)
        scores = warpgroup_mma_wait(1, [scores])
        give_back(k_ring, count + 1)
        weights = weigh(scores, given, index, unmasked, done, WHICH, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW,
                        APPROXIMATE, BLOCK_N, GROUPS)
        wait_tile(v_ring, count + 1)
        # Nothing rescales the sums, so this could wait until the next scores are issued; but ptxas (12.8, 12.9) makes
        # every product wait for the one before where one that reads registers is in flight as the loop turns.
        acc = warpgroup_mma_wait(0, [acc])
        give_back(v_ring, count)
        count += 1
    weights = gl.convert_layout(weights.to(q.dtype), WEIGHTS)
    acc = warpgroup_mma(weights, take(v_ring, count), acc, is_async=True)
    acc = warpgroup_mma_wait(0, [acc])
    give_back(v_ring, count)
    return acc, count + 1


@gluon.jit
@no_type_check
def send(given, acc, done, WHICH: gl.constexpr, GROUPS: gl.constexpr):
    """Send a job's output from where its queries were, if these have as many columns."""
    out_desc, outs, rings = given[0], given[1], given[2]
    q_ring = rings[0][WHICH]
    ROOM: gl.constexpr = q_ring[0].shape[0]
    job = told_job(given[6], done)
    first, queries = share_of(job, done, WHICH, GROUPS)
    place = q_ring[0].index(done % ROOM)
    if q_ring[0].shape[5] != acc.shape[1]:
        place = outs.index(WHICH)
        tma.store_wait(0)  # the last output may still be on its way
        sync_warps()
    put(out_desc, place, acc * given[5], job[0], queries, first, job[1])


@gluon.jit
@no_type_check
def attend(given, WHICH: gl.constexpr, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr,
           HAS_WINDOW: gl.constexpr, APPROXIMATE: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_V: gl.constexpr,
           GROUPS: gl.constexpr):
    """A warpgroup's work: its 64 rows of each job, as of `share_of`."""
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    rings, tickets = given[2], given[6]
    q_ring = rings[0][WHICH]
    ROOM: gl.constexpr = q_ring[0].shape[0]
    count = 0
    done = 0
    hear(tickets, 0)
    while number_of(tickets, done, 0) >= 0:
        total, unseen, unmasked = seen_of(told_job(tickets, done), given[3], done, WHICH, CAUSAL, HAS_PREFIX,
                                          HAS_TARGETS, HAS_WINDOW, BLOCK_N, GROUPS)
        acc = gl.zeros([ROWS, BLOCK_V], gl.float32, OUT)
        wait_tile(q_ring, done)
        if total > 0:
            acc, count = through_tiles(given, total, unmasked, count, done, WHICH, CAUSAL, HAS_PREFIX, HAS_TARGETS,
                                       HAS_WINDOW, APPROXIMATE, BLOCK_N, BLOCK_V, GROUPS)
        elif ROOM > 1:
            leave(q_ring, done)
        send(given, acc, done, WHICH, GROUPS)
        forget(tickets, done)
        count = pass_over(rings, count, unseen)
        done += 1
        if ROOM == 1:  # the next queries come when this has left
            leave(q_ring, done)
        # Not before: the loader looks for a job when it has loaded this one's last tile.
        hear(tickets, done)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_hopper_forward(
    q_desc, k_desc, v_desc, out_desc, drawn_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, half_alpha, scale, heads,
    pairs, tiles, group, contextual_len, window,
    CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr,
    HAS_CACHE: gl.constexpr, APPROXIMATE: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_V: gl.constexpr,
    STAGES: gl.constexpr, ROOM: gl.constexpr, GROUPS: gl.constexpr, DRAWS: gl.constexpr, REGISTERS: gl.constexpr,
):
    """Rings and barriers, and who does what; with ROOM for so many tiles of queries."""
    problem = (offsets_ptr, offsets_q_ptr, num_targets_ptr, contextual_len, window, heads, pairs, tiles, group)
    q_rings = (ring_of(q_desc, ROOM, 1), ring_of(q_desc, ROOM, 1))
    if GROUPS == 3:
        q_rings = (q_rings[0], q_rings[1], ring_of(q_desc, ROOM, 1))
    # Values are read a step longer than keys.
    rings = (q_rings, ring_of(k_desc, STAGES, GROUPS), ring_of(v_desc, STAGES + 1, GROUPS))
    tickets = tickets_for(GROUPS, 13)
    outs = q_rings[0][0]
    if q_desc.block_shape[4] != BLOCK_V:
        outs = gl.allocate_shared_memory(out_desc.dtype, [GROUPS] + out_desc.block_shape, out_desc.layout)
    fence_async_shared()
    loads = (q_desc, k_desc, v_desc, rings, problem, tickets, drawn_ptr)
    sums = (out_desc, outs, rings, window, half_alpha, scale, tickets)
    # Constants are written out each time: in a tuple they would be numbers of the run.
    if GROUPS == 2:
        gl.warp_specialize([
            (attend, (sums, 0, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, APPROXIMATE, BLOCK_N, BLOCK_V, GROUPS)),
            (attend, (sums, 1, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, APPROXIMATE, BLOCK_N, BLOCK_V, GROUPS)),
            (load, (loads, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, BLOCK_N, GROUPS, DRAWS)),
        ], [4, 1], [REGISTERS, 24])
    else:
        gl.warp_specialize([
            (attend, (sums, 0, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, APPROXIMATE, BLOCK_N, BLOCK_V, GROUPS)),
            (attend, (sums, 1, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, APPROXIMATE, BLOCK_N, BLOCK_V, GROUPS)),
            (attend, (sums, 2, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, APPROXIMATE, BLOCK_N, BLOCK_V, GROUPS)),
            (load, (loads, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, BLOCK_N, GROUPS, DRAWS)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])
