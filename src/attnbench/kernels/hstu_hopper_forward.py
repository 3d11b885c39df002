# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Dense HSTU attention forward for Hopper: one warp loads, two or three warpgroups of 64 rows each attend.

The sums are those of hstu_dense_forward.  What differs is who waits for whom:

    loader        rows of queries, then tiles of keys and values, each as soon as its place in the ring is free
    warpgroup     S' = Q K'ᵀ and O += A V are issued together; SiLU of S' is worked out beside the second, and beside
                  the products of the other warpgroups

Keys go from the last to the first, masked tiles first, so that the longest part of the loop masks nothing.  A
warpgroup passes over the tiles in front that none of its rows sees.  A job is one tile of 64 rows a
warpgroup; of a program that has several the loader is a job ahead.
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

from attnbench.kernels.hopper import (
    ROWS,
    barriers,
    fill,
    flat,
    give_back,
    jobs_of,
    pass_over,
    pass_turn,
    place_of,
    ring_of,
    store_tile,
    sync_warps,
    take,
    tile_of,
    wait_tile,
    wait_turn,
)
from attnbench.kernels.hstu_dense_tiles import (
    COUNTS,
    keys_of_rows,
    masked_tile,
    sees,
    sequence,
    silu,
    tiles_of_rows,
)
from attnbench.kernels.rows import section_of


@gluon.jit
@no_type_check
def job_of(program, problem, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr,
           HAS_WINDOW: gl.constexpr, HAS_CACHE: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """Which rows a program's turn is about, and which tiles of keys they see."""
    offsets_ptr, offsets_q_ptr, num_targets_ptr, contextual_len, window, heads, pairs, tiles, group = problem
    tile, pair = section_of(program, tiles, pairs, group)
    number = pair // heads
    head = pair - number * heads
    key_start, query_start, keys, first_query, prefix, seen = sequence(
        offsets_ptr, offsets_q_ptr, num_targets_ptr, number, contextual_len, HAS_PREFIX, HAS_TARGETS, HAS_CACHE)
    start = (tiles - 1 - tile) * BLOCK_M
    first = first_query + start
    ranges = tiles_of_rows(first, gl.minimum(first + BLOCK_M, keys) - 1, prefix, seen, window, CAUSAL, HAS_PREFIX,
                           HAS_TARGETS, HAS_WINDOW, BLOCK_N)
    return (head, key_start.to(gl.int32), query_start.to(gl.int32), keys, keys - first_query, start, first, prefix,
            seen, ranges)


@gluon.jit
@no_type_check
def tile_at(index, ranges, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr):
    """The index-th tile of a job: the masked ones first, and of each kind the last first."""
    begin, whole, split, end, own, masked = ranges
    tile = masked_tile(masked - 1 - index, begin, whole, split, end, own, HAS_TARGETS, HAS_WINDOW)
    return gl.where(index < masked, tile, split - 1 - index + masked)


@gluon.jit
@no_type_check
def unseen_of(row, keys, mask, ranges, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr,
              HAS_WINDOW: gl.constexpr, BLOCK_N: gl.constexpr):
    """How many of a job's first tiles show nothing to the 64 rows from `row`."""
    prefix, seen, window = mask
    begin, whole, split, end, _own, masked = ranges
    last = gl.minimum(row + ROWS, keys) - 1
    _low, _all_low, _all_high, high = keys_of_rows(row, last, prefix, seen, window, CAUSAL, HAS_PREFIX, HAS_WINDOW)
    after = gl.maximum(gl.minimum(end - (high + BLOCK_N - 1) // BLOCK_N, end - split), 0)
    if HAS_TARGETS:
        # Targets have themselves, in the tiles behind; rows without one have no tile there.
        after = gl.where(last >= seen, 0, after + masked - (whole - begin + end - split))
    return gl.where(row < keys, after, masked + split - whole)


@gluon.jit
@no_type_check
def load(given, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr,
         HAS_CACHE: gl.constexpr, BLOCK_N: gl.constexpr, GROUPS: gl.constexpr, SEVERAL: gl.constexpr):
    """The loader's work."""
    q_desc, k_desc, v_desc, rings, problem, stretch, sharers = given
    q_rings, k_ring, v_ring = rings
    count = 0
    turn = 0
    one, last, every = jobs_of(problem[6] * problem[7], stretch, sharers, SEVERAL)
    for program in range(one, last, every):
        head, key_start, query_start, keys, queries, start, _first, _prefix, _seen, ranges = job_of(
            program, problem, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, ROWS * GROUPS, BLOCK_N)
        if start < queries:
            for which in gl.static_range(GROUPS):
                fill(q_rings[which], turn, q_desc, query_start, queries, start + which * ROWS, head)
            turn += 1
            for index in range(ranges[5] + ranges[2] - ranges[1]):
                at = tile_at(index, ranges, HAS_TARGETS, HAS_WINDOW) * BLOCK_N
                fill(k_ring, count, k_desc, key_start, keys, at, head)
                fill(v_ring, count, v_desc, key_start, keys, at, head)
                count += 1


@gluon.jit
@no_type_check
def weigh(scores, half_alpha, row, at, mask, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr,
          HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr, MASKED: gl.constexpr, APPROXIMATE: gl.constexpr):
    """SiLU of a tile's scores, 0 where MASKED and hidden; rows from `row`, keys from `at`."""
    if MASKED:
        prefix, seen, window = mask
        LAYOUT: gl.constexpr = scores.type.layout
        rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
        keys = at + gl.arange(0, scores.shape[1], gl.SliceLayout(0, LAYOUT))[None, :]
        see = sees(rows, keys, prefix, seen, window, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW)
        scores = gl.where(see, scores, 0.0)  # whose SiLU is 0
    return silu(scores, half_alpha, APPROXIMATE)


@gluon.jit
@no_type_check
def step(acc, weights, q, rings, turns, count, half_alpha, row, at, mask, CAUSAL: gl.constexpr,
         HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr, MASKED: gl.constexpr,
         APPROXIMATE: gl.constexpr, BLOCK_N: gl.constexpr, WHICH: gl.constexpr, TURNS: gl.constexpr):
    """Scores of the count-th tile, and the product of the one before with its `weights`."""
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    _q_rings, k_ring, v_ring = rings
    none = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    if TURNS:
        wait_turn(turns, count, WHICH)
    k = take(k_ring, count)
    scores = warpgroup_mma(q, k.permute([1, 0]), none, use_acc=False, is_async=True)
    # Rounded here, not where they came about: carried in 16 bits, each would be packed anew.
    rounded = gl.convert_layout(weights.to(q.dtype), WEIGHTS)
    acc = warpgroup_mma(rounded, tile_of(v_ring, count - 1), acc, is_async=True)
    if TURNS:
        pass_turn(turns, WHICH)
    scores = warpgroup_mma_wait(1, [scores])
    give_back(k_ring, count)
    weights = weigh(scores, half_alpha, row, at, mask, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, MASKED,
                    APPROXIMATE)
    wait_tile(v_ring, count)
    # Nothing rescales the sums, so this could wait until the next scores are issued; but ptxas (12.8, 12.9) makes every
    # product wait for the one before where one that reads registers is in flight as the loop turns.
    acc = warpgroup_mma_wait(0, [acc])
    give_back(v_ring, count - 1)
    return acc, weights


@gluon.jit
@no_type_check
def through_tiles(acc, q, rings, turns, count, unseen, ranges, half_alpha, row, mask, CAUSAL: gl.constexpr,
                  HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr,
                  APPROXIMATE: gl.constexpr, BLOCK_N: gl.constexpr, WHICH: gl.constexpr, TURNS: gl.constexpr):
    """Add a job's tiles from the `unseen`-th, one at least, to the sums; and the count after them."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    _q_rings, k_ring, v_ring = rings
    masked = ranges[5]
    total = masked + ranges[2] - ranges[1]
    none = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    if TURNS:
        wait_turn(turns, count, WHICH)
    k = take(k_ring, count)
    scores = warpgroup_mma(q, k.permute([1, 0]), none, use_acc=False, is_async=True)
    if TURNS:
        pass_turn(turns, WHICH)
    scores = warpgroup_mma_wait(0, [scores])
    give_back(k_ring, count)
    at = tile_at(unseen, ranges, HAS_TARGETS, HAS_WINDOW) * BLOCK_N
    weights = weigh(scores, half_alpha, row, at, mask, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, True, APPROXIMATE)
    wait_tile(v_ring, count)
    count += 1
    for index in range(unseen + 1, masked):
        at = tile_at(index, ranges, HAS_TARGETS, HAS_WINDOW) * BLOCK_N
        acc, weights = step(acc, weights, q, rings, turns, count, half_alpha, row, at, mask, CAUSAL, HAS_PREFIX,
                            HAS_TARGETS, HAS_WINDOW, True, APPROXIMATE, BLOCK_N, WHICH, TURNS)
        count += 1
    for _index in range(gl.maximum(unseen + 1, masked), total):
        acc, weights = step(acc, weights, q, rings, turns, count, half_alpha, row, 0, mask, CAUSAL, HAS_PREFIX,
                            HAS_TARGETS, HAS_WINDOW, False, APPROXIMATE, BLOCK_N, WHICH, TURNS)
        count += 1
    weights = gl.convert_layout(weights.to(q.dtype), WEIGHTS)
    acc = warpgroup_mma(weights, tile_of(v_ring, count - 1), acc, is_async=True)
    acc = warpgroup_mma_wait(0, [acc])
    give_back(v_ring, count - 1)
    return acc, count


@gluon.jit
@no_type_check
def attend(given, WHICH: gl.constexpr, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr,
           HAS_WINDOW: gl.constexpr, HAS_CACHE: gl.constexpr, APPROXIMATE: gl.constexpr, BLOCK_N: gl.constexpr,
           BLOCK_V: gl.constexpr, GROUPS: gl.constexpr, TURNS: gl.constexpr, SEVERAL: gl.constexpr):
    """A warpgroup's work: rows from 64 WHICH of each tile."""
    out_desc, outs, rings, turns, problem, stretch, sharers, half_alpha, scale = given
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    q_ring = rings[0][WHICH]
    count = 0
    turn = 0
    one, last, every = jobs_of(problem[6] * problem[7], stretch, sharers, SEVERAL)
    for program in range(one, last, every):
        head, _key_start, query_start, keys, queries, start, first, prefix, seen, ranges = job_of(
            program, problem, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, ROWS * GROUPS, BLOCK_N)
        if start < queries:
            row = first + WHICH * ROWS
            mask = (prefix, seen, problem[4])
            unseen = unseen_of(row, keys, mask, ranges, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, BLOCK_N)
            count = pass_over(rings, turns, count, unseen, WHICH, TURNS)
            q = take(q_ring, turn)
            acc = gl.zeros([ROWS, BLOCK_V], gl.float32, OUT)
            if unseen < ranges[5] + ranges[2] - ranges[1]:
                acc, count = through_tiles(acc, q, rings, turns, count, unseen, ranges, half_alpha, row, mask, CAUSAL,
                                           HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, APPROXIMATE, BLOCK_N, WHICH, TURNS)
            # Queries of as many columns have been read: the output leaves from where they were.
            mine = turn % q_ring[0].shape[0]
            place = q_ring[0].index(mine) if q.shape[1] == BLOCK_V else outs.index(WHICH)
            flat(place).store((acc * scale).to(out_desc.dtype))
            fence_async_shared()
            sync_warps()
            store_tile(out_desc, place_of(query_start, queries, start + WHICH * ROWS, head), place)
            tma.store_wait(0)
            give_back(q_ring, turn)
            turn += 1


@gluon.jit(do_not_specialize=(*COUNTS, "stretch", "sharers"))
@no_type_check
def hstu_hopper_forward(
    q_desc, k_desc, v_desc, out_desc, offsets_ptr, offsets_q_ptr, num_targets_ptr, half_alpha, scale, heads, pairs,
    tiles, group, stretch, sharers, contextual_len, window,
    CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr,
    HAS_CACHE: gl.constexpr, APPROXIMATE: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_V: gl.constexpr,
    STAGES: gl.constexpr, Q_STAGES: gl.constexpr, GROUPS: gl.constexpr, TURNS: gl.constexpr, SEVERAL: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    """Rings and barriers, and who does what; with two Q_STAGES a program's next queries come beside its work."""
    problem = (offsets_ptr, offsets_q_ptr, num_targets_ptr, contextual_len, window, heads, pairs, tiles, group)
    q_rings = (ring_of(q_desc, Q_STAGES, 1), ring_of(q_desc, Q_STAGES, 1))
    if GROUPS == 3:
        q_rings = (q_rings[0], q_rings[1], ring_of(q_desc, Q_STAGES, 1))
    # Values are read a step longer than keys.
    rings = (q_rings, ring_of(k_desc, STAGES, GROUPS), ring_of(v_desc, STAGES + 1, GROUPS))
    turns = barriers(GROUPS, 1)
    outs = q_rings[0][0]
    if q_desc.block_shape[4] != BLOCK_V:
        outs = gl.allocate_shared_memory(out_desc.dtype, [GROUPS] + out_desc.block_shape, out_desc.layout)
    fence_async_shared()
    loads = (q_desc, k_desc, v_desc, rings, problem, stretch, sharers)
    sums = (out_desc, outs, rings, turns, problem, stretch, sharers, half_alpha, scale)
    # Constants are written out each time: in a tuple they would be numbers of the run.
    if GROUPS == 2:
        gl.warp_specialize([
            (attend, (sums, 0, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, APPROXIMATE, BLOCK_N, BLOCK_V,
                      GROUPS, TURNS, SEVERAL)),
            (attend, (sums, 1, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, APPROXIMATE, BLOCK_N, BLOCK_V,
                      GROUPS, TURNS, SEVERAL)),
            (load, (loads, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, BLOCK_N, GROUPS,
                    SEVERAL)),
        ], [4, 1], [REGISTERS, 24])
    else:
        gl.warp_specialize([
            (attend, (sums, 0, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, APPROXIMATE, BLOCK_N, BLOCK_V,
                      GROUPS, TURNS, SEVERAL)),
            (attend, (sums, 1, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, APPROXIMATE, BLOCK_N, BLOCK_V,
                      GROUPS, TURNS, SEVERAL)),
            (attend, (sums, 2, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, APPROXIMATE, BLOCK_N, BLOCK_V,
                      GROUPS, TURNS, SEVERAL)),
            (load, (loads, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, BLOCK_N, GROUPS,
                    SEVERAL)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])
