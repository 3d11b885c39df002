# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Selected branch of block-sparse HSTU attention: partial rows, and their sum.

    attend   for a tile of the queries that selected block b:   partial[t, s] = c Σ_{j in b} SiLU(α q_t·k_j) v_j
    combine  for a tile of queries:                             out_t += g_selected Σ_s partial[t, s]

SiLU attention has no normaliser, so partial sums are simply added.  A block's keys are loaded once for a tile of the
queries that selected it (one dense product); partial rows are written by query and slot, and each query adds its own in
the order of its slots: no atomics, bitwise reproducible.

Partial rows are most of the traffic, so they should stay in the L2.  Two schedules:

    passes  attend and combine are launched alternately for some (sequence, head) pairs at a time
    ticket  one launch: programs fetch tickets from a counter, numbered through the pairs; the sums of a pair come
            `lag` pairs after its tiles, and a ring of buffers holds the partial rows of `ring` pairs.  A program waits
            only for programs with lower tickets, which have all started: no deadlock in any launch order.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu.bsa.tiles import (
    COUNTS,
    FIRST_ENTRY,
    LISTED_BLOCK,
    NUM_ENTRIES,
    RECORD,
    SELECTED,
    gate_of,
    gather_rows,
    scatter_rows,
    standing,
)
from attnbench.kernels.hstu.tiles import sequence, silu
from attnbench.kernels.shared.rows import load_rows


@triton.jit
@no_type_check
def wait_for(counter_ptr, count):
    """Wait until `count` programs have arrived; afterwards the whole program sees what they wrote."""
    while tl.atomic_add(counter_ptr, 0, sem="acquire") < count:
        pass
    tl.debug_barrier()


@triton.jit
@no_type_check
def arrive(counter_ptr):
    """Signal that the program is done, after the writes of all its threads."""
    tl.debug_barrier()
    tl.atomic_add(counter_ptr, 1, sem="release")


@triton.jit
@no_type_check
def attend_part(
    q_ptr,
    k_ptr,
    v_ptr,
    partial_ptr,
    entries_ptr,
    tiles_ptr,
    num_tiles_ptr,
    sequences,
    unit,
    part,
    parts,
    strides,
    heads,
    entry_rows,
    tile_rows,
    half_alpha,
    scale,
    META: tl.constexpr,
):
    """One of the parts of a pair's tiles; `partial_ptr` points to the partial rows of the pair.

    META is that of one of the kernels below.
    """
    LINEAR_DIM: tl.constexpr = META.LINEAR_DIM
    BLOCK_SIZE: tl.constexpr = META.BLOCK_SIZE
    OTHERS: tl.constexpr = META.OTHERS
    ROWS: tl.constexpr = META.ROWS
    number = unit // heads
    head = (unit - number * heads).to(tl.int64)
    list_head = head * 0 if META.SHARED else head
    many = tl.load(num_tiles_ptr + (number if META.SHARED else unit))
    each = tl.cdiv(many, parts)
    bounds = sequence(
        sequences, number, contextual_len=0, HAS_PREFIX=False, HAS_TARGETS=META.HAS_TARGETS, HAS_CACHE=META.HAS_CACHE
    )
    tiles = (
        tiles_ptr
        + (list_head * tile_rows + (bounds.query_start * OTHERS) // ROWS + bounds.key_start // BLOCK_SIZE) * RECORD
    )
    entries = entries_ptr + list_head * entry_rows + bounds.query_start * OTHERS
    q_base = q_ptr + head * strides.q.head + bounds.query_start * strides.q.row
    k_base = k_ptr + head * strides.k.head + bounds.key_start * strides.k.row
    v_base = v_ptr + head * strides.v.head + bounds.key_start * strides.v.row
    at = tl.arange(0, ROWS)
    for tile in tl.range(part * each, tl.minimum((part + 1) * each, many), num_stages=1):
        where = tiles + tile * RECORD
        first = tl.load(where + FIRST_ENTRY)
        key = tl.load(where + LISTED_BLOCK) * BLOCK_SIZE
        mask = at < tl.load(where + NUM_ENTRIES)
        entry = tl.load(entries + first + at, mask=mask, other=0)
        # A listed block is complete and past, so every query of its list sees all its keys.
        k = load_rows(
            k_base,
            key,
            count=0,
            stride=strides.k.row,
            DIM=META.ATTN_DIM,
            BLOCK=BLOCK_SIZE,
            BLOCK_DIM=META.BLOCK_D,
            WHOLE=True,
        )
        v = load_rows(
            v_base,
            key,
            count=0,
            stride=strides.v.row,
            DIM=LINEAR_DIM,
            BLOCK=BLOCK_SIZE,
            BLOCK_DIM=META.BLOCK_V,
            WHOLE=True,
        )
        q = gather_rows(q_base, entry // OTHERS, mask, strides.q.row, META.ATTN_DIM, META.BLOCK_D)
        weights = silu(tl.dot(q, tl.trans(k), input_precision="ieee"), half_alpha, META.TANH)
        partial = tl.dot(weights.to(q.dtype), v, input_precision="ieee") * scale
        scatter_rows(partial_ptr, entry, mask, LINEAR_DIM, partial, LINEAR_DIM, META.BLOCK_V)


@triton.jit
@no_type_check
def combine_part(
    gates_ptr,
    out_ptr,
    partial_ptr,
    sequences,
    unit,
    part,
    span,
    heads,
    LINEAR_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    OTHERS: tl.constexpr,
    GATES: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """`span` queries of a pair; `out` holds the other branches, and the sum is added to it."""
    number = unit // heads
    head = (unit - number * heads).to(tl.int64)
    bounds = sequence(
        sequences, number, contextual_len=0, HAS_PREFIX=False, HAS_TARGETS=HAS_TARGETS, HAS_CACHE=HAS_CACHE
    )
    out_row = heads * LINEAR_DIM
    out = out_ptr + bounds.query_start * out_row + head * LINEAR_DIM
    end = tl.minimum((part + 1) * span, bounds.keys - bounds.first_query)
    for start in range(part * span, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = rows < end
        local = standing(rows, bounds.first_query, bounds.seen, BLOCK_SIZE).local
        gate = gate_of(gates_ptr, bounds.query_start + rows, heads, head, mask, SELECTED, GATES)
        total = gather_rows(out, rows, mask, out_row, LINEAR_DIM, BLOCK_V).to(tl.float32)
        chosen = tl.zeros([ROWS, BLOCK_V], tl.float32)
        for slot in tl.static_range(OTHERS):
            chosen += gather_rows(
                partial_ptr, rows * OTHERS + slot, mask & (slot < local), LINEAR_DIM, LINEAR_DIM, BLOCK_V
            ).to(tl.float32)
        scatter_rows(out, rows, mask, out_row, total + chosen * gate[:, None], LINEAR_DIM, BLOCK_V)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_attend(
    q_ptr,
    k_ptr,
    v_ptr,
    partial_ptr,
    entries_ptr,
    tiles_ptr,
    num_tiles_ptr,
    sequences,
    first_unit,
    parts,
    strides,
    heads,
    entry_rows,
    tile_rows,
    slot_rows,
    half_alpha,
    scale,
    META: tl.constexpr,
):
    """One program: a part of one pair's tiles, in the pass that begins at `first_unit`."""
    place = tl.program_id(0) // parts
    attend_part(
        q_ptr=q_ptr,
        k_ptr=k_ptr,
        v_ptr=v_ptr,
        partial_ptr=partial_ptr + place.to(tl.int64) * slot_rows * META.LINEAR_DIM,
        entries_ptr=entries_ptr,
        tiles_ptr=tiles_ptr,
        num_tiles_ptr=num_tiles_ptr,
        sequences=sequences,
        unit=first_unit + place,
        part=tl.program_id(0) - place * parts,
        parts=parts,
        strides=strides,
        heads=heads,
        entry_rows=entry_rows,
        tile_rows=tile_rows,
        half_alpha=half_alpha,
        scale=scale,
        META=META,
    )


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_combine(
    gates_ptr,
    out_ptr,
    partial_ptr,
    sequences,
    first_unit,
    row_parts,
    span,
    heads,
    slot_rows,
    LINEAR_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    OTHERS: tl.constexpr,
    GATES: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program: `span` queries of one pair, in the pass that begins at `first_unit`."""
    place = tl.program_id(0) // row_parts
    combine_part(
        gates_ptr=gates_ptr,
        out_ptr=out_ptr,
        partial_ptr=partial_ptr + place.to(tl.int64) * slot_rows * LINEAR_DIM,
        sequences=sequences,
        unit=first_unit + place,
        part=tl.program_id(0) - place * row_parts,
        span=span,
        heads=heads,
        LINEAR_DIM=LINEAR_DIM,
        BLOCK_V=BLOCK_V,
        BLOCK_SIZE=BLOCK_SIZE,
        OTHERS=OTHERS,
        GATES=GATES,
        HAS_TARGETS=HAS_TARGETS,
        HAS_CACHE=HAS_CACHE,
        ROWS=ROWS,
    )


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_ticket(
    q_ptr,
    k_ptr,
    v_ptr,
    gates_ptr,
    out_ptr,
    partial_ptr,
    progress_ptr,
    entries_ptr,
    tiles_ptr,
    num_tiles_ptr,
    sequences,
    units,
    lag,
    ring,
    parts,
    row_parts,
    span,
    strides,
    heads,
    entry_rows,
    tile_rows,
    slot_rows,
    half_alpha,
    scale,
    META: tl.constexpr,
):
    """One program: what its ticket says, a part of a pair's tiles or of its sums."""
    # progress: tickets fetched, then for each pair the parts attended, then for each pair the parts combined.
    ticket = tl.atomic_add(progress_ptr, 1, sem="relaxed")
    step = ticket // (parts + row_parts)
    place = ticket - step * (parts + row_parts)
    attended = progress_ptr + 1
    combined = attended + units
    size = tl.cast(slot_rows, tl.int64) * META.LINEAR_DIM
    # Programs wait even if a short sequence leaves them no work: a full count then says that all earlier pairs of the same
    # ring buffer are done, not only the pair that is counted.
    if place < parts:
        if step < units:
            wait_for(combined + tl.maximum(step - ring, 0), tl.where(step < ring, 0, row_parts))
            attend_part(
                q_ptr=q_ptr,
                k_ptr=k_ptr,
                v_ptr=v_ptr,
                partial_ptr=partial_ptr + (step % ring) * size,
                entries_ptr=entries_ptr,
                tiles_ptr=tiles_ptr,
                num_tiles_ptr=num_tiles_ptr,
                sequences=sequences,
                unit=step,
                part=place,
                parts=parts,
                strides=strides,
                heads=heads,
                entry_rows=entry_rows,
                tile_rows=tile_rows,
                half_alpha=half_alpha,
                scale=scale,
                META=META,
            )
            arrive(attended + step)
    elif step >= lag:
        unit = step - lag
        wait_for(attended + unit, parts)
        combine_part(
            gates_ptr=gates_ptr,
            out_ptr=out_ptr,
            partial_ptr=partial_ptr + (unit % ring) * size,
            sequences=sequences,
            unit=unit,
            part=place - parts,
            span=span,
            heads=heads,
            LINEAR_DIM=META.LINEAR_DIM,
            BLOCK_V=META.BLOCK_V,
            BLOCK_SIZE=META.BLOCK_SIZE,
            OTHERS=META.OTHERS,
            GATES=META.GATES,
            HAS_TARGETS=META.HAS_TARGETS,
            HAS_CACHE=META.HAS_CACHE,
            ROWS=META.COMBINE_ROWS,
        )
        arrive(combined + unit)
