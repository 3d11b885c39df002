# ruff: noqa: ANN001, ANN201, SIM102 (bodies of kernels are not Python)
"""The wide product of an HSTU layer, whose epilogue does what kernels of their own did.

    y = round(x Wᵀ + b)                        columns u | v | q | k, each of all heads
    v, q, k = round(SiLU(y)) of the paper's layer, y of Meta's; u = y of both
    pages = k and v of the rows that are new history; candidates and rows in no sequence never

A program computes a tile of rows and columns.  Programs next to each other have the same columns, so that a weight comes
from memory once.  Where a row goes is looked up before the product: the answers come while tiles are loaded.

EARLY (programmatic dependent launch): programs start while the kernel before this one, the norm, still runs, and bring
their weights to the L2 until it has ended.  They read nothing before that, so that a weight too may be what it wrote.  The
kernel behind is let go before the epilogue; it has to wait by itself, as attention for Hopper does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from attnbench.kernels.hstu.tiles import silu
from attnbench.kernels.shared.kept import describes, launch, rows_in

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor

    from attnbench.kernels.hstu.paged.problem import Step
    from attnbench.kernels.hstu.projection.config import ProjectionConfig

COUNTS = ("rows", "tiles", "sequences")
"""Arguments whose value no code depends on: another batch or length compiles nothing anew."""
PARTS = tl.constexpr(4)
"u, v, q and k."


class ProjectionMeta(NamedTuple):
    """What `hstu_projection` is compiled for."""

    DIM: int
    "columns of x"
    WIDE: int
    "columns of each part"
    PAGE: int
    HAS_CACHE: bool
    HAS_TARGETS: bool
    SILU: bool
    EARLY: bool
    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    TMA: bool


@triton.jit
@no_type_check
def slots_of(
    at,
    offsets_ptr,
    cached_ptr,
    indptr_ptr,
    indices_ptr,
    num_targets_ptr,
    sequences,
    PAGE: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
):
    """The place of each row's key in the pool, in rows of it; -1 of a candidate and of a row in no sequence."""
    slot = tl.full(at.shape, -1, tl.int64)
    for number in tl.range(0, sequences, num_stages=1):
        start = tl.load(offsets_ptr + number)
        stop = tl.load(offsets_ptr + number + 1)
        if HAS_TARGETS:
            stop -= tl.load(num_targets_ptr + number)
        key = tl.load(cached_ptr + number) + at - start
        mine = (at >= start) & (at < stop)
        pages_ptr = indices_ptr + tl.load(indptr_ptr + number)
        page = tl.load(pages_ptr + key // PAGE, mask=mine, other=0).to(tl.int64)
        slot = tl.where(mine, page * (2 * PAGE) + key % PAGE, slot)
    return slot


@triton.jit
@no_type_check
def bring_rows(from_ptr, mine, BYTES: tl.constexpr):
    """Bring those rows that are `mine`, of so many bytes and from these addresses on, to the L2 (sm_90 and later)."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $3; mov.u32 $0, 0; }",
        "=r,l,r,r",
        [from_ptr.to(tl.int64), mine.to(tl.int32), tl.full(mine.shape, BYTES, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_projection(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    x_desc,
    weight_desc,
    pool_ptr,
    offsets_ptr,
    cached_ptr,
    indptr_ptr,
    indices_ptr,
    num_targets_ptr,
    rows,
    tiles,
    sequences,
    META: tl.constexpr,
):
    """A tile of the product, and of it what the pages keep."""
    DIM: tl.constexpr = META.DIM
    WIDE: tl.constexpr = META.WIDE
    COLUMNS: tl.constexpr = PARTS * META.WIDE
    BLOCK_M: tl.constexpr = META.BLOCK_M
    BLOCK_N: tl.constexpr = META.BLOCK_N
    BLOCK_K: tl.constexpr = META.BLOCK_K
    first_row = tl.program_id(0) % tiles * BLOCK_M
    first_column = tl.program_id(0) // tiles * BLOCK_N
    at = first_row + tl.arange(0, BLOCK_M)
    column = first_column + tl.arange(0, BLOCK_N)
    # Parts of the first and of the last column: a tile of narrow heads has several.
    ONE_PART: tl.constexpr = WIDE % BLOCK_N == 0
    low = first_column // WIDE
    high = (tl.minimum(first_column + BLOCK_N, COLUMNS) - 1) // WIDE
    if META.EARLY:
        # Programs of the same columns share them.
        mine = (column % tiles == first_row // BLOCK_M) & (column < COLUMNS)
        bring_rows(weight_ptr + column * DIM, mine, DIM * weight_ptr.dtype.element_ty.primitive_bitwidth // 8)
        gdc_wait()
    bias = tl.load(bias_ptr + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    if META.HAS_CACHE:
        kept = (low != high) | (low % 2 == 1)
        slot = slots_of(
            at=at,
            offsets_ptr=offsets_ptr,
            cached_ptr=cached_ptr,
            indptr_ptr=indptr_ptr,
            indices_ptr=indices_ptr,
            num_targets_ptr=num_targets_ptr,
            sequences=tl.where(kept, sequences, 0),
            PAGE=META.PAGE,
            HAS_TARGETS=META.HAS_TARGETS,
        )
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if META.TMA:
        for first in tl.range(0, DIM, BLOCK_K):
            x = x_desc.load([first_row, first])
            weight = weight_desc.load([first_column, first])
            acc = tl.dot(x, tl.trans(weight), acc)
    else:
        inputs = tl.arange(0, BLOCK_K)
        x_from = x_ptr + at.to(tl.int64)[:, None] * DIM + inputs[None, :]
        weight_from = weight_ptr + column[None, :] * DIM + inputs[:, None]
        for first in tl.range(0, DIM, BLOCK_K):
            known = first + inputs < DIM
            x = tl.load(x_from + first, mask=(at < rows)[:, None] & known[None, :], other=0.0)
            weight = tl.load(weight_from + first, mask=(column < COLUMNS)[None, :] & known[:, None], other=0.0)
            acc = tl.dot(x, weight, acc, input_precision="ieee")
    if META.EARLY:
        gdc_launch_dependents()
    # Rounded where the product was, and where SiLU was: the separate kernels store both.
    y = (acc + bias[None, :]).to(out_ptr.dtype.element_ty)
    if META.SILU:
        if high > 0:
            smooth = silu(y.to(tl.float32), 0.5, APPROXIMATE=False).to(y.dtype)
            y = smooth if ONE_PART else tl.where((column >= WIDE)[None, :], smooth, y)
    to = out_ptr + at.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    tl.store(to, y, mask=(at < rows)[:, None] & (column < COLUMNS)[None, :])
    if META.HAS_CACHE:
        if kept:
            # Values of a page lie behind its keys.
            there = (slot >= 0)[:, None]
            if ONE_PART:
                inside = first_column - low * WIDE + tl.where(low == 1, META.PAGE * WIDE, 0) + tl.arange(0, BLOCK_N)
            else:
                part = column // WIDE
                inside = column - part * WIDE + tl.where(part == 1, META.PAGE * WIDE, 0)
                there = there & ((part % 2 == 1) & (column < COLUMNS))[None, :]
            tl.store(pool_ptr + slot[:, None] * WIDE + inside[None, :], y, mask=there)


def launch_projection(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    pool: Tensor | None,
    step: Step | None,
    config: ProjectionConfig,
    *,
    silu: bool,
    early: bool = False,
) -> None:
    """Compute `out` [rows, 4 wide], and where there is a pool write the new history's keys and values into its pages.

    Args:
        x: [rows, dim], contiguous.
        weight: [4 wide, dim], contiguous.
        bias: [4 wide].
        out: contiguous; all of it is written.
        pool: [pages, 2, page_size, heads, dims], contiguous; None: no pages.
        step: sequences and pages; checked before.  None as the pool is.
        config: tile and code path.
        silu: whether v, q and k are SiLU of the product.
        early: whether it is launched while the kernel before it runs, with loads by the tensor memory accelerator alone.
    """
    columns, dim = weight.shape
    rows, tma = rows_in(x), config.loads == "tma"
    tiles = rows.parts(config.block_m)
    launch(
        hstu_projection,
        (tiles * -(-columns // config.block_n),),
        x_ptr=x,
        weight_ptr=weight,
        bias_ptr=bias,
        out_ptr=out,
        x_desc=_described(x, config.block_m, config.block_k, follows=True) if tma else None,
        weight_desc=_described(weight, config.block_n, config.block_k, follows=False) if tma else None,
        pool_ptr=pool,
        offsets_ptr=None if step is None else step.offsets,
        cached_ptr=None if step is None else step.cached,
        indptr_ptr=None if step is None else step.indptr,
        indices_ptr=None if step is None else step.indices,
        num_targets_ptr=None if step is None else step.num_targets,
        rows=rows,
        tiles=tiles,
        sequences=0 if step is None else step.batch,
        META=ProjectionMeta(
            DIM=dim,
            WIDE=columns // 4,
            PAGE=1 if pool is None else pool.shape[2],
            HAS_CACHE=pool is not None,
            HAS_TARGETS=step is not None and step.num_targets is not None,
            SILU=silu,
            EARLY=early,
            BLOCK_M=config.block_m,
            BLOCK_N=config.block_n,
            BLOCK_K=config.block_k,
            TMA=tma,
        ),
        num_warps=config.warps,
        num_stages=config.stages,
        **({"launch_pdl": True} if early else {}),
    )


def _described(x: Tensor, rows: int, columns: int, *, follows: bool) -> Any:
    """Describe a matrix to the tensor memory accelerator: zeros outside; `follows`: whether its rows are a call's."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    found = TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])
    return describes(found, shape={0: rows_in(x)}, strides={}) if follows else found
