# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Selected, local and sliding branches of block-sparse HSTU attention, and the sum of all.

    attend  for a tile of the queries that chose block b:   partial[t, s] = c Σ_{j in b} SiLU(α q_t·k_j) v_j
    finish  for a tile of queries:  out_t += g_selected Σ_s partial[t, s] + the keys nearby, gated, and a target's own

SiLU attention has no normaliser, so partial sums simply add.  A block's keys are loaded once for a tile of the
queries that chose it (one dense product), partial rows are written by query and slot, and each query adds its own
in the order of its slots: no atomics, the same bits each time.

Partial rows are most of the traffic, so they should die in the L2.  Two schedules:

    passes  attend and finish are launched in turn for so many (sequence, head) pairs at a time
    ticket  one launch: programs draw numbers that go through the pairs one after another, the finish of a pair
            `lag` pairs behind its attend, in a ring of `ring` pairs of partial rows.  A program waits only for
            programs with lower numbers, which have all started: it cannot hang, whatever order the card picks.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu_bsa_tiles import (
    COUNTS,
    gate_of,
    gather_rows,
    near_begin,
    near_masks,
    near_weights,
    scatter_rows,
    standing,
)
from attnbench.kernels.hstu_dense_tiles import sequence, silu
from attnbench.kernels.rows import load_rows


@triton.jit
@no_type_check
def wait_for(counter_ptr, count):
    """Until so many have arrived; what they wrote is seen afterwards by the whole program."""
    while tl.atomic_add(counter_ptr, 0, sem="acquire") < count:
        pass
    tl.debug_barrier()


@triton.jit
@no_type_check
def arrive(counter_ptr):
    """Say that the program is done: all its threads' writes come first."""
    tl.debug_barrier()
    tl.atomic_add(counter_ptr, 1, sem="release")


@triton.jit
@no_type_check
def attend_tile(
    q_ptr, k_ptr, v_ptr, partial_ptr, ready_ptr, needed, entries_ptr, tiles_ptr, num_tiles_ptr, offsets_ptr,
    offsets_q_ptr, num_targets_ptr, unit, tile, q_row, q_head, k_row, k_head, v_row, v_head, heads, entry_rows,
    tile_rows, half_alpha, scale, ATTN_DIM: tl.constexpr, LINEAR_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_SIZE: tl.constexpr, OTHERS: tl.constexpr, HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr, TANH: tl.constexpr, WAIT: tl.constexpr,
):
    """One tile of one block's list; `partial_ptr` is where the partial rows of the pair start.

    With WAIT they may be written once `ready_ptr` has counted to `needed`.
    """
    number = unit // heads
    head = (unit - number * heads).to(tl.int64)
    list_head = head * 0 if SHARED else head
    if tile < tl.load(num_tiles_ptr + (number if SHARED else unit)):
        key_start, query_start, _, _, _, _ = sequence(offsets_ptr, offsets_q_ptr, num_targets_ptr, number, 0, False,
                                                      HAS_TARGETS, HAS_CACHE)
        table = list_head * tile_rows + (query_start * OTHERS) // ROWS + key_start // BLOCK_SIZE
        where = tiles_ptr + (table + tile) * 3
        first = tl.load(where)
        block = tl.load(where + 1)
        mask = tl.arange(0, ROWS) < tl.load(where + 2)
        entry = tl.load(entries_ptr + list_head * entry_rows + query_start * OTHERS + first + tl.arange(0, ROWS),
                        mask=mask, other=0)
        key = key_start + block * BLOCK_SIZE
        k = load_rows(k_ptr + head * k_head + key * k_row, 0, BLOCK_SIZE, k_row, ATTN_DIM, BLOCK_SIZE, BLOCK_D, True)
        v = load_rows(v_ptr + head * v_head + key * v_row, 0, BLOCK_SIZE, v_row, LINEAR_DIM, BLOCK_SIZE, BLOCK_V, True)
        q = gather_rows(q_ptr + head * q_head + query_start * q_row, entry // OTHERS, mask, q_row, ATTN_DIM, BLOCK_D)
        # A listed block is complete and past: every query of its list sees all its keys.
        weights = silu(tl.dot(q, tl.trans(k), input_precision="ieee"), half_alpha, TANH)
        partial = tl.dot(weights.to(q.dtype), v, input_precision="ieee") * scale
        if WAIT:
            wait_for(ready_ptr, needed)
        scatter_rows(partial_ptr, entry, mask, LINEAR_DIM, partial, LINEAR_DIM, BLOCK_V)


@triton.jit
@no_type_check
def near_sum(acc, q, k_base, v_base, begin, end, position, stand, local, seen, of_local, of_window, k_row, v_row,
             half_alpha, ATTN_DIM: tl.constexpr, LINEAR_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
             BLOCK_V: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, KEYS: tl.constexpr,
             TANH: tl.constexpr):
    """Add the keys from `begin` to `end` that the local and the sliding branch see."""
    for start in range(begin, end, KEYS):
        k = load_rows(k_base, start, end, k_row, ATTN_DIM, KEYS, BLOCK_D, False)
        in_local, in_window = near_masks((start + tl.arange(0, KEYS))[None, :], position[:, None], stand[:, None],
                                         local[:, None], seen, WINDOW, BLOCK_SIZE)
        weights = silu(tl.dot(q, tl.trans(k), input_precision="ieee"), half_alpha, TANH)
        weights = near_weights(weights, in_local, in_window, of_local[:, None], of_window[:, None], WINDOW)
        v = load_rows(v_base, start, end, v_row, LINEAR_DIM, KEYS, BLOCK_V, False)
        acc = tl.dot(weights.to(q.dtype), v, acc, input_precision="ieee")
    return acc


@triton.jit
@no_type_check
def finish_tile(
    q_ptr, k_ptr, v_ptr, gates_ptr, out_ptr, partial_ptr, ready_ptr, needed, offsets_ptr, offsets_q_ptr,
    num_targets_ptr, unit, tile, q_row, q_head, k_row, k_head, v_row, v_head, heads, half_alpha, scale,
    ATTN_DIM: tl.constexpr, LINEAR_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, OTHERS: tl.constexpr, GATES: tl.constexpr, WINDOW: tl.constexpr,
    HAS_TARGETS: tl.constexpr, HAS_CACHE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, TANH: tl.constexpr,
    WAIT: tl.constexpr,
):
    """One tile of queries; `out` holds the compressed branch and takes the sum.

    With WAIT the partial rows are there once `ready_ptr` has counted to `needed`.
    """
    number = unit // heads
    head = (unit - number * heads).to(tl.int64)
    key_start, query_start, keys, first_query, _, seen = sequence(
        offsets_ptr, offsets_q_ptr, num_targets_ptr, number, 0, False, HAS_TARGETS, HAS_CACHE)
    queries = keys - first_query
    start = tile * ROWS
    if start < queries:
        rows = start + tl.arange(0, ROWS)
        mask = rows < queries
        position, stand, local = standing(rows, first_query, seen, BLOCK_SIZE)
        of_local = gate_of(gates_ptr, query_start + rows, heads, head, mask, 1, GATES)
        of_window = of_local
        if WINDOW > 0:
            of_window = gate_of(gates_ptr, query_start + rows, heads, head, mask, 2, GATES)
        q_base = q_ptr + query_start * q_row + head * q_head
        k_base = k_ptr + key_start * k_row + head * k_head
        v_base = v_ptr + key_start * v_row + head * v_head
        q = load_rows(q_base, start, queries, q_row, ATTN_DIM, ROWS, BLOCK_D, False)
        begin = near_begin(first_query + start, seen, WINDOW, BLOCK_SIZE)
        end = tl.minimum(first_query + tl.minimum(start + ROWS, queries), seen)
        acc = near_sum(tl.zeros([ROWS, BLOCK_V], tl.float32), q, k_base, v_base, begin, end, position, stand, local,
                       seen, of_local, of_window, k_row, v_row, half_alpha, ATTN_DIM, LINEAR_DIM, BLOCK_D, BLOCK_V,
                       BLOCK_SIZE, WINDOW, KEYS, TANH)
        if HAS_TARGETS:
            # A target is a key of its own alone, in the selected branch and in the sliding one.
            target = mask & (position >= seen)
            own = gather_rows(k_base, position, target, k_row, ATTN_DIM, BLOCK_D)
            weight = silu(tl.sum(q.to(tl.float32) * own.to(tl.float32), 1), half_alpha, TANH)
            weight *= (of_local + of_window) if WINDOW > 0 else of_local
            own = gather_rows(v_base, position, target, v_row, LINEAR_DIM, BLOCK_V)
            acc += weight[:, None] * own.to(tl.float32)
        total = acc * scale
        if OTHERS > 0:
            count = tl.minimum(local, OTHERS)
            if WAIT:
                wait_for(ready_ptr, needed)
            chosen = tl.zeros([ROWS, BLOCK_V], tl.float32)
            for slot in tl.static_range(OTHERS):
                chosen += gather_rows(partial_ptr, rows * OTHERS + slot, mask & (slot < count), LINEAR_DIM, LINEAR_DIM,
                                      BLOCK_V).to(tl.float32)
            total += chosen * of_local[:, None]
        out_row = heads * LINEAR_DIM
        out = out_ptr + query_start * out_row + head * LINEAR_DIM
        total += gather_rows(out, rows, mask, out_row, LINEAR_DIM, BLOCK_V).to(tl.float32)
        scatter_rows(out, rows, mask, out_row, total, LINEAR_DIM, BLOCK_V)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_attend(
    q_ptr, k_ptr, v_ptr, partial_ptr, entries_ptr, tiles_ptr, num_tiles_ptr, offsets_ptr, offsets_q_ptr,
    num_targets_ptr, first_unit, tiles, q_row, q_head, k_row, k_head, v_row, v_head, heads, entry_rows, tile_rows,
    slot_rows, half_alpha, scale, ATTN_DIM: tl.constexpr, LINEAR_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_SIZE: tl.constexpr, OTHERS: tl.constexpr, HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr, TANH: tl.constexpr,
):
    """A program: one tile of a list of one pair, of a pass from `first_unit` on."""
    place = tl.program_id(0) // tiles
    attend_tile(
        q_ptr, k_ptr, v_ptr, partial_ptr + place.to(tl.int64) * slot_rows * LINEAR_DIM, num_tiles_ptr, 0, entries_ptr,
        tiles_ptr, num_tiles_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, first_unit + place,
        tl.program_id(0) - place * tiles, q_row, q_head, k_row, k_head, v_row, v_head, heads, entry_rows, tile_rows,
        half_alpha, scale, ATTN_DIM, LINEAR_DIM, BLOCK_D, BLOCK_V, BLOCK_SIZE, OTHERS, HAS_TARGETS, HAS_CACHE, SHARED,
        ROWS, TANH, False)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_finish(
    q_ptr, k_ptr, v_ptr, gates_ptr, out_ptr, partial_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, first_unit,
    tiles, q_row, q_head, k_row, k_head, v_row, v_head, heads, slot_rows, half_alpha, scale, ATTN_DIM: tl.constexpr,
    LINEAR_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    OTHERS: tl.constexpr, GATES: tl.constexpr, WINDOW: tl.constexpr, HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, TANH: tl.constexpr,
):
    """A program: one tile of queries of one pair, of a pass from `first_unit` on."""
    place = tl.program_id(0) // tiles
    finish_tile(
        q_ptr, k_ptr, v_ptr, gates_ptr, out_ptr, partial_ptr + place.to(tl.int64) * slot_rows * LINEAR_DIM,
        offsets_ptr, 0, offsets_ptr, offsets_q_ptr, num_targets_ptr, first_unit + place,
        tl.program_id(0) - place * tiles, q_row, q_head, k_row, k_head, v_row, v_head, heads, half_alpha, scale,
        ATTN_DIM, LINEAR_DIM, BLOCK_D, BLOCK_V, BLOCK_SIZE, OTHERS, GATES, WINDOW, HAS_TARGETS, HAS_CACHE, ROWS, KEYS,
        TANH, False)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_ticket(
    q_ptr, k_ptr, v_ptr, gates_ptr, out_ptr, partial_ptr, progress_ptr, entries_ptr, tiles_ptr, num_tiles_ptr,
    offsets_ptr, offsets_q_ptr, num_targets_ptr, units, lag, ring, tiles, row_tiles, q_row, q_head, k_row, k_head,
    v_row, v_head, heads, entry_rows, tile_rows, slot_rows, half_alpha, scale, ATTN_DIM: tl.constexpr,
    LINEAR_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    OTHERS: tl.constexpr, GATES: tl.constexpr, WINDOW: tl.constexpr, HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr, FINISH_ROWS: tl.constexpr, KEYS: tl.constexpr,
    TANH: tl.constexpr,
):
    """A program: what the ticket it draws says, an attend tile or a finish tile."""
    # progress: tickets drawn, then of each pair the attend tiles done, then of each pair the finish tiles done.
    ticket = tl.atomic_add(progress_ptr, 1, sem="relaxed")
    step = ticket // (tiles + row_tiles)
    place = ticket - step * (tiles + row_tiles)
    attended = progress_ptr + 1
    finished = attended + units
    size = tl.cast(slot_rows, tl.int64) * LINEAR_DIM
    # Each waits as late as it can: what it loads and multiplies of its own is then done already.  The first tile of
    # each kind waits even where a short sequence leaves it no work: a count that is full says that all before it in
    # the same place of the ring are done, not only the pair that is counted.
    if place < tiles:
        if step < units:
            free = finished + tl.maximum(step - ring, 0)
            needed = tl.where(step < ring, 0, row_tiles)
            attend_tile(
                q_ptr, k_ptr, v_ptr, partial_ptr + (step % ring) * size, free, needed, entries_ptr, tiles_ptr,
                num_tiles_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, step, place, q_row, q_head, k_row, k_head,
                v_row, v_head, heads, entry_rows, tile_rows, half_alpha, scale, ATTN_DIM, LINEAR_DIM, BLOCK_D, BLOCK_V,
                BLOCK_SIZE, OTHERS, HAS_TARGETS, HAS_CACHE, SHARED, ROWS, TANH, True)
            if place == 0:
                wait_for(free, needed)
            arrive(attended + step)
    elif step >= lag:
        unit = step - lag
        finish_tile(
            q_ptr, k_ptr, v_ptr, gates_ptr, out_ptr, partial_ptr + (unit % ring) * size, attended + unit, tiles,
            offsets_ptr, offsets_q_ptr, num_targets_ptr, unit, place - tiles, q_row, q_head, k_row, k_head, v_row,
            v_head, heads, half_alpha, scale, ATTN_DIM, LINEAR_DIM, BLOCK_D, BLOCK_V, BLOCK_SIZE, OTHERS, GATES,
            WINDOW, HAS_TARGETS, HAS_CACHE, FINISH_ROWS, KEYS, TANH, True)
        if place == tiles:
            wait_for(attended + unit, tiles)
        arrive(finished + unit)
