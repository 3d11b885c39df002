# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The warp of the flash forward for Hopper that loads: queries, keys and values, and by ticket which job is next."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.flash.hopper.tiles import job_of, whose
from attnbench.kernels.shared.hopper import ROWS, draw, fill, jobs_of, tell


@gluon.jit
@no_type_check
def load_job(given, job, key_start, count, done, BLOCK_N: gl.constexpr, GROUPS: gl.constexpr, GRID: gl.constexpr):
    """Load a job's tiles; how many tiles of keys there have been then, and the next ticket if drawn, else -1."""
    q_desc, k_desc, v_desc, rings, _problem, repeats, _tickets, drawn_ptr, held_rings = given
    q_rings, k_ring, v_ring = rings
    HALF: gl.constexpr = q_desc.block_shape[4] % k_desc.block_shape[4]
    AHEAD: gl.constexpr = q_rings[0][0].shape[0] > 1
    following = -1
    query_start, head, _batch, queries, keys, first, begin, _whole, _split, end = job
    if HALF:
        for which in gl.static_range(GROUPS):
            fill(held_rings[which], done, q_desc, query_start, queries, first + which * ROWS, head)
    # Without room for two the queries come after the first keys: the last output may have to leave before.
    if not AHEAD and begin < end:
        fill(k_ring, count, k_desc, key_start, keys, (end - 1) * BLOCK_N, head // repeats)
    for which in gl.static_range(GROUPS):
        fill(q_rings[which], done, q_desc, query_start, queries, first + which * ROWS, head, 0, HALF)
    if AHEAD and begin < end:
        fill(k_ring, count, k_desc, key_start, keys, (end - 1) * BLOCK_N, head // repeats)
    # Keys a tile before values, as they are read: their place is free before that of the values.
    for index in range(end - begin):
        at = (end - 1 - index) * BLOCK_N
        if at > begin * BLOCK_N:
            fill(k_ring, count + 1, k_desc, key_start, keys, at - BLOCK_N, head // repeats)
        elif GRID == "ticket":
            # Here, for the answer comes while the last values wait for room; earlier, and a long job would hold the
            # next one back from programs that are done before.
            following = draw(drawn_ptr)
        fill(v_ring, count, v_desc, key_start, keys, at, head // repeats)
        count += 1
    return count, following


@gluon.jit
@no_type_check
def load(given, HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, PACKED: gl.constexpr, BLOCK_N: gl.constexpr,
         GROUPS: gl.constexpr, GRID: gl.constexpr):
    """The loader's work: it finds a job, tells the warpgroups of it, and loads; by ticket it draws them for all."""
    problem = given[4]
    tickets = given[6]
    jobs = problem[7] * problem[8]
    count = 0
    done = 0
    at, last, step = jobs_of(jobs, problem[10], problem[11], GRID == "few" or GRID == "persistent")
    if GRID == "ticket":
        last = jobs
    while at < last:
        tile, head, number = whose(at, problem, step, GRID)
        job, key_start = job_of(tile, head, number, problem, HAS_LEFT, HAS_RIGHT, PACKED, ROWS * GROUPS, BLOCK_N)
        following = -1
        if job[5] < job[3]:
            tell(tickets, done, job)
            count, following = load_job(given, job, key_start, count, done, BLOCK_N, GROUPS, GRID)
            done += 1
        if GRID != "ticket":
            following = at + step
        elif following < 0:  # a job without rows or without keys
            following = draw(given[7])
        at = following
    tell(tickets, done, (-1,))
