# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""What the kernels of dense HSTU attention for Hopper share: the mask, and which tiles a backward's program takes."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.hstu.tiles import rows_of_keys, sees, sequence
from attnbench.kernels.shared.hopper import ROWS
from attnbench.kernels.shared.rows import section_of

HIDDEN = -1e4
"A score α s / 2 whose SiLU and slope are 0, by the tanh instruction and by an exponential."

LEAST_ALPHA = 1e-30
"Below it α s is not HIDDEN for any number s; without α all gradients are 0, hidden or not."


@gluon.jit
@no_type_check
def job_of(problem, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr,
           HAS_WINDOW: gl.constexpr, HAS_CACHE: gl.constexpr, BLOCK_N: gl.constexpr):
    """Which BLOCK_N keys a program is about, and which tiles of queries see them.

    Those are [0, front), the prefix, and [begin, end); every query of [whole, split) sees every key.
    """
    offsets_ptr, offsets_q_ptr, num_targets_ptr, contextual_len, window, heads, pairs, tiles, group = problem
    # The first keys are seen by most rows.
    tile, pair = section_of(gl.program_id(0), tiles, pairs, group)
    number = pair // heads
    head = pair - number * heads
    key_start, query_start, keys, first_query, prefix, seen = sequence(
        offsets_ptr, offsets_q_ptr, num_targets_ptr, number, contextual_len, HAS_PREFIX, HAS_TARGETS, HAS_CACHE)
    start = tile * BLOCK_N
    low, all_low, all_high, high = rows_of_keys(start, gl.minimum(start + BLOCK_N, keys) - 1, keys, prefix, seen,
                                                window, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW)
    front = 0
    if HAS_PREFIX:
        front = gl.where(start < seen, (gl.maximum(prefix - first_query, 0) + ROWS - 1) // ROWS, 0)
    begin = gl.maximum(gl.maximum(low - first_query, 0) // ROWS, front)
    end = gl.maximum((gl.maximum(high - first_query, 0) + ROWS - 1) // ROWS, begin)
    whole = (gl.maximum(all_low - first_query, 0) + ROWS - 1) // ROWS
    whole = gl.minimum(gl.maximum(whole, begin), end)
    # Queries past the last one are zeros and add nothing: a last tile that is not whole needs no mask.
    last = gl.where(all_high == keys, end, gl.maximum(all_high - first_query, 0) // ROWS)
    split = gl.minimum(gl.maximum(last, whole), end)
    return (head, key_start.to(gl.int32), query_start.to(gl.int32), keys, first_query, prefix, seen, start, front,
            begin, whole, split, end)


@gluon.jit
@no_type_check
def step_of(index, front, begin, HAS_PREFIX: gl.constexpr):
    """The index-th tile of queries that a program takes."""
    tile = begin + index
    if HAS_PREFIX:
        tile = gl.where(index < front, index, tile - front)
    return tile


@gluon.jit
@no_type_check
def hide(scores, hidden, down, across, prefix, seen, window, ROWS_DOWN: gl.constexpr, CAUSAL: gl.constexpr,
         HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr):
    """Scores [64, n], down from row (if ROWS_DOWN, else key) `down`, across from the other, `hidden` where masked."""
    columns = gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))[None, :]
    # Positions from the first of every eight columns a thread has one place in: what is left of `columns` is then a
    # constant of the code, where it were a register a column that the compiler keeps through the loop.
    own = columns & 7
    zero = across + own
    lines = down + gl.arange(0, ROWS, gl.SliceLayout(1, scores.type.layout))[:, None] - zero
    if CAUSAL and ROWS_DOWN and not (HAS_PREFIX or HAS_TARGETS or HAS_WINDOW):
        see = columns - own < gl.minimum(lines + 1, seen - zero)  # one comparison an element, not two
    elif ROWS_DOWN:
        see = sees(lines, columns - own, prefix - zero, seen - zero, window, CAUSAL, HAS_PREFIX, HAS_TARGETS,
                   HAS_WINDOW)
    else:
        see = sees(columns - own, lines, prefix - zero, seen - zero, window, CAUSAL, HAS_PREFIX, HAS_TARGETS,
                   HAS_WINDOW)
    return gl.where(see, scores, hidden)
