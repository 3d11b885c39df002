"""Launches of the block-sparse HSTU forward: pool, select, lists, attend.

Every launch takes a `BsaCall`, whose tensors are allocated already.  Nothing is allocated and nothing synchronizes with
the device; grids follow from numbers that the host knows, so that a CUDA graph can capture them.
"""

from __future__ import annotations

from typing import Any

from attnbench.kernels.hstu.arguments import RowStrides
from attnbench.kernels.hstu.bsa.call import BsaCall, first_of, options_of, with_meta
from attnbench.kernels.hstu.bsa.hopper.attend import attend_hopper
from attnbench.kernels.hstu.bsa.hopper.select import select_hopper
from attnbench.kernels.hstu.bsa.plan import in_flight, parts_of
from attnbench.kernels.hstu.bsa.portable.arguments import (
    AttendMeta,
    ForwardStrides,
    PoolStrides,
    SelectMeta,
    TicketMeta,
)
from attnbench.kernels.hstu.bsa.portable.attend import hstu_bsa_attend, hstu_bsa_combine, hstu_bsa_ticket
from attnbench.kernels.hstu.bsa.portable.lists import hstu_bsa_place, hstu_bsa_rank, hstu_bsa_scatter
from attnbench.kernels.hstu.bsa.portable.pool import hstu_bsa_pool
from attnbench.kernels.hstu.bsa.portable.select import hstu_bsa_select, hstu_bsa_select_shared
from attnbench.kernels.shared.kept import clear, launch

PLACED = 256
"Blocks whose lists are placed at a time."


def forward(call: BsaCall) -> None:
    """Launch all kernels: out and blocks are written."""
    pool(call)
    select(call)
    lists(call)
    attend(call)


def pool(call: BsaCall) -> None:
    """Means of the complete blocks of keys and values."""
    p, c = call.problem, call.config
    blocks, rows = p.max_seqlen // p.block_size, min(p.block_size, c.pool_rows)
    if p.units * blocks:
        launch(
            hstu_bsa_pool,
            (p.units * blocks,),
            **call.tensors("k", "v", "means_k", "means_v"),
            sequences=call.sequences,
            strides=PoolStrides(**call.strides("k", "v")),
            heads=p.heads,
            blocks=blocks,
            mean_rows=p.mean_rows,
            **call.dims(),
            **call.flags(),
            ROWS=rows,
            AT_ONCE=min(4, p.block_size // rows),
            num_warps=c.pool_warps,
        )


def select(call: BsaCall) -> None:
    """Compressed, local and sliding branches, written to out, and the blocks of each query."""
    p, c = call.problem, call.config
    if c.select:
        select_hopper(call, c.select)
        return
    tiles = -(-p.max_seqlen_q // c.select_rows)
    constants = {
        "COUNTS": p.block_counts,
        "PAIRS": p.pairs,
        "ROWS": c.select_rows,
        "BLOCKS": c.select_blocks,
        "BITS": p.index_bits,
        **options_of(c.select_warps, c.select_stages, c.select_registers),
    }
    sizes = {"heads": p.heads, "tiles": tiles, "mean_rows": p.mean_rows}
    if not p.units * tiles:
        return
    if p.shared:
        dims = {name: value for name, value in call.dims().items() if name in ("ATTN_DIM", "BLOCK_D")}
        launch(
            hstu_bsa_select_shared,
            (p.batch * tiles,),
            **call.tensors("q", "means_k", "blocks"),
            sequences=call.sequences,
            q_strides=RowStrides.of(call.q),
            **sizes,
            **dims,
            **call.flags(),
            **constants,
        )
    launch(
        hstu_bsa_select,
        (p.units * tiles,),
        **with_meta(
            SelectMeta,
            **call.tensors("q", "k", "v", "means_k", "means_v", "out", "blocks"),
            gates_ptr=first_of(call.gates, call.q),
            sequences=call.sequences,
            strides=ForwardStrides(**call.strides("q", "k", "v")),
            **sizes,
            **call.factors(),
            **call.dims(),
            **call.flags(),
            **constants,
            GATES=p.gates,
            WINDOW=p.local_window,
            SHARED=p.shared,
            KEYS=c.near_keys,
            TANH=c.silu == "tanh",
        ),
    )


def lists(call: BsaCall) -> None:
    """For each block the queries that selected it."""
    p, c = call.problem, call.config
    units = p.batch * p.list_heads
    if not p.others or not units * p.max_seqlen_q:
        return
    common = {
        "sequences": call.sequences,
        "list_heads": p.list_heads,
        "count_rows": p.count_rows,
        **call.flags(),
        "OTHERS": p.others,
    }
    chunks = -(-p.slot_rows // c.chunk)
    entries = {"chunks": chunks, "entry_rows": p.entry_rows, "CHUNK": c.chunk, "num_warps": c.list_warps}
    clear(call.workspace["counts"])
    launch(hstu_bsa_rank, (units * chunks,), **call.tensors("blocks", "ranks", "counts"), **common, **entries)
    launch(
        hstu_bsa_place,
        (units,),
        **call.tensors("counts", "starts", "tiles", "num_tiles"),
        **common,
        tile_rows=p.tile_rows(c.list_rows),
        ROWS=c.list_rows,
        CHUNK=PLACED,
    )
    launch(
        hstu_bsa_scatter, (units * chunks,), **call.tensors("blocks", "ranks", "starts", "entries"), **common, **entries
    )


def attend(call: BsaCall) -> None:
    """Partial rows of the listed blocks, and their sums, which are added to out."""
    p, c = call.problem, call.config
    if not p.others or not p.units * p.max_seqlen_q:
        return
    if c.attend:
        attend_hopper(call, c.attend)
        return
    parts, flight = parts_of(p, c), in_flight(p, c)
    if c.schedule == "ticket":
        clear(call.workspace["progress"])
        launch(
            hstu_bsa_ticket,
            ((p.units + flight.lag) * (parts.attend + parts.combine),),
            **with_meta(
                TicketMeta,
                **_attend_arguments(call) | _combine_arguments(call) | {"ROWS": c.attend_rows},
                **call.tensors("progress"),
                COMBINE_ROWS=c.combine_rows,
                units=p.units,
                lag=flight.lag,
                ring=flight.ring,
                parts=parts.attend,
                row_parts=parts.combine,
                span=parts.span,
            ),
        )
        return
    for first in range(0, p.units, flight.ring):
        units = min(flight.ring, p.units - first)
        if parts.attend:
            launch(
                hstu_bsa_attend,
                (units * parts.attend,),
                **with_meta(AttendMeta, **_attend_arguments(call), first_unit=first, parts=parts.attend),
            )
        launch(
            hstu_bsa_combine,
            (units * parts.combine,),
            **_combine_arguments(call),
            first_unit=first,
            row_parts=parts.combine,
            span=parts.span,
        )


def _attend_arguments(call: BsaCall) -> dict[str, Any]:
    p, c = call.problem, call.config
    return {
        **call.tensors("q", "k", "v", "partial", "entries", "tiles", "num_tiles"),
        "sequences": call.sequences,
        "strides": ForwardStrides(**call.strides("q", "k", "v")),
        "heads": p.heads,
        "entry_rows": p.entry_rows,
        "tile_rows": p.tile_rows(c.attend_rows),
        "slot_rows": p.slot_rows,
        **call.factors(),
        **call.dims(),
        **call.flags(),
        "OTHERS": p.others,
        "SHARED": p.shared,
        "ROWS": c.attend_rows,
        "TANH": c.silu == "tanh",
        **options_of(c.attend_warps, 1, c.attend_registers),
    }


def _combine_arguments(call: BsaCall) -> dict[str, Any]:
    p, c = call.problem, call.config
    dims = {name: value for name, value in call.dims().items() if name in ("LINEAR_DIM", "BLOCK_V")}
    return {
        **call.tensors("out", "partial"),
        "gates_ptr": first_of(call.gates, call.q),
        "sequences": call.sequences,
        "heads": p.heads,
        "slot_rows": p.slot_rows,
        **dims,
        **call.flags(),
        "OTHERS": p.others,
        "GATES": p.gates,
        "ROWS": c.combine_rows,
        **options_of(c.attend_warps, 1, c.attend_registers),
    }
