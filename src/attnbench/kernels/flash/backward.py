"""Flash attention backward: probabilities are recomputed from lse.

    delta = rowsum(dO ∘ O)        P = exp(c Q Kᵀ - lse)        dV = Pᵀ dO        dS = P ∘ (dO Vᵀ - delta)
    dQ = c dS K                   dK = c dSᵀ Q                 (dK and dV summed over the query heads of a KV head)

(Dao 2023, arXiv:2307.08691, algorithm 2.)  Three kernels.  The first computes -lse / c and -delta of every row.  In the
second, a program has a tile of keys and loops over the rows that see them, with dK and dV in registers.  dQ is either
accumulated there in fp32 by atomics and then rounded by the third kernel (five products a tile; the order of the sums
varies), or computed by a third kernel that loops over the keys of a tile of rows (seven products, bitwise reproducible).

Workspace: 8 bytes for each row and query head, and 4 D more with atomics (with the order `ws` 256, 512 or 1024).  Its
rows are those of the queries, with each sequence rounded up to whole tiles of `pad` rows (dense), or all of them plus one
tile for each sequence (packed).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from attnbench.kernels.flash.config.backward import why_not
from attnbench.kernels.flash.portable.arguments import ColumnsMeta, ColumnsOperands, RowsMeta, RowsOperands
from attnbench.kernels.flash.portable.backward_columns import flash_backward_columns
from attnbench.kernels.flash.portable.backward_rows import (
    flash_backward_prepare,
    flash_backward_round,
    flash_backward_rows,
)
from attnbench.kernels.flash.problem import blocks_of, descriptor, lse_strides, strides_of, takes_tma
from attnbench.kernels.shared.card import capability_of
from attnbench.kernels.shared.counts import RowCount, descriptor_of
from attnbench.kernels.shared.kept import describes, empty, launch, rows_in
from attnbench.kernels.shared.tiling import block_of, group_of

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.flash.config.backward import BackwardConfig, Tiles
    from attnbench.kernels.flash.problem import Problem

__all__ = ["Workspace", "launch_backward", "workspace_bytes", "workspace_of"]

ROUND_ROWS = 64


@dataclass(frozen=True, slots=True)
class Workspace:
    """Workspace of a backward; its contents before a call do not matter."""

    stats: Tensor
    "fp32 [2, H, rows]: -lse / scale (with `BackwardConfig.base_2` -lse log2(e)) and -delta"
    sums: Tensor | None
    "fp32 [H, rows, D]: where atomics accumulate dQ; with the order `ws` in the tiles of `shared.rows.in_rows`"


def workspace_rows(q: Tensor, problem: Problem, config: BackwardConfig) -> int | RowCount:
    """Rows of the workspace: those of the queries, with each sequence rounded up to whole tiles."""
    pad = config.pad
    if problem.packed:
        return (rows_in(q) // pad + problem.batch) * pad
    return problem.batch * (-(-problem.max_seqlen_q // pad)) * pad


def workspace_bytes(q: Tensor, problem: Problem, config: BackwardConfig) -> int:
    """Bytes of `workspace_of`: rows × H × (8 + 4 D), deterministic rows × H × 8."""
    each = 8 if config.deterministic else 8 + 4 * config.columns_of_sums(q.shape[-1])
    return int(workspace_rows(q, problem, config)) * q.shape[-2] * each


def workspace_of(q: Tensor, problem: Problem, config: BackwardConfig) -> Workspace:
    """Allocate the workspace, which serves any number of calls with these shapes."""
    heads, rows = q.shape[-2], workspace_rows(q, problem, config)
    stats = empty((2, heads, rows), q, torch.float32)
    shape = heads, rows, config.columns_of_sums(q.shape[-1])
    return Workspace(stats, None if config.deterministic else empty(shape, q, torch.float32))


def launch_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    problem: Problem,
    config: BackwardConfig,
    workspace: Workspace,
) -> None:
    """Compute dq, dk and dv into their tensors, without allocating and without synchronizing.

    Args:
        q: [B, Sq, H, D] or packed [Tq, H, D], last dim contiguous, also for the others.
        k: [B, Sk, G, D] or packed [Tk, G, D].
        v: like k with Dv dims.
        out: like q with Dv dims, of the forward.
        dout: like out.
        lse: fp32 [B, H, Sq] or packed [1, H, Tq], contiguous in the last dim; -inf where a row sees no key.
        dq: like q; every row is written, also for dk and dv.
        dk: like k.
        dv: like v.
        problem: sequences, mask and scale; already checked.
        config: tiles, code path, and whether atomics accumulate dQ.
        workspace: of `workspace_of` for this configuration.

    Raises:
        ValueError: the order `ws` was requested and does not support this card, precision, dims or a tensor; the message
            says which.
    """
    if config.order == "ws":
        fault = why_not(config, capability_of(q) or (9, 0), q.element_size(), q.shape[-1], v.shape[-1])
        if fault:
            raise ValueError(f"flash_attention: backward={config.short} is not valid, {fault}")
    _prepare(out, dout, lse, q, problem, config, workspace)
    _columns(q=q, k=k, v=v, dout=dout, dk=dk, dv=dv, problem=problem, config=config, workspace=workspace)
    if config.rows is not None:
        _rows(q=q, k=k, v=v, dout=dout, dq=dq, problem=problem, config=config, sizes=config.rows, workspace=workspace)
    else:
        _round(dq, problem, config, workspace)


def _prepare(
    out: Tensor, dout: Tensor, lse: Tensor, q: Tensor, problem: Problem, config: BackwardConfig, workspace: Workspace
) -> None:
    heads, dim_v, pad, columns = q.shape[-2], out.shape[-1], config.pad, config.columns_of_sums(q.shape[-1])
    tiles = -(-problem.max_seqlen_q // pad)
    programs = tiles * problem.batch * heads
    if not programs:
        return
    launch(
        flash_backward_prepare,
        (programs,),
        out_ptr=out,
        dout_ptr=dout,
        lse_ptr=lse,
        stats_ptr=workspace.stats,
        sums_ptr=workspace.sums,
        cu_q_ptr=problem.cu_seqlens_q,
        seqlen_q=problem.max_seqlen_q,
        out_strides=strides_of(out),
        dout_strides=strides_of(dout),
        **lse_strides(lse, problem),
        scale=problem.scale,
        stats_rows=rows_in(workspace.stats, 2),
        heads=heads,
        tiles=tiles,
        **blocks_of(columns, dim_v),
        BLOCK_M=pad,
        PAD=pad,
        PACKED=problem.packed,
        ATOMIC=not config.deterministic,
        DEPENDENT=config.order == "ws",
        BASE_2=config.base_2,
        num_warps=8 if pad * block_of(dim_v) > 4096 else 4,
    )


def _columns(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    dk: Tensor,
    dv: Tensor,
    problem: Problem,
    config: BackwardConfig,
    workspace: Workspace,
) -> None:
    sizes, (heads, dim), (heads_kv, dim_v) = config.columns, q.shape[-2:], v.shape[-2:]
    tiles, pairs = -(-problem.seqlen_k // sizes.block_n), problem.batch * heads_kv
    members = heads // max(1, heads_kv)
    if not tiles * pairs:
        return
    sums = workspace.sums
    if config.order == "ws":
        from attnbench.kernels.flash.hopper.backward import launch_hopper_columns

        assert sums is not None
        launch_hopper_columns(
            q=q, k=k, v=v, dout=dout, dk=dk, dv=dv, stats=workspace.stats, sums=sums, problem=problem, config=config
        )
        return
    tma = config.loads == "tma" and takes_tma(q) and takes_tma(dout)
    # The interpreter has no atomics through descriptors, and descriptor coordinates are 32-bit.
    tma_add = (
        tma and sums is not None and sums.device.type != "cpu" and takes_tma(sums) and math.prod(sums.shape[:2]) < 2**31
    )
    reread = members * problem.max_seqlen_q * ((dim + dim_v) * q.element_size() + 4 * dim * (sums is not None))
    operands = ColumnsOperands(q, k, v, dout, dk, dv)
    launch(
        flash_backward_columns,
        (tiles * pairs,),
        tensors=operands,
        sums_ptr=sums,
        stats_ptr=workspace.stats,
        q_desc=descriptor(q, sizes.block_m, block_of(dim)) if tma else None,
        dout_desc=descriptor(dout, sizes.block_m, block_of(dim_v)) if tma else None,
        sums_desc=_sums_descriptor(sums, sizes, block_of(dim)) if tma_add else None,
        **problem.lengths(),
        strides=ColumnsOperands(*map(strides_of, operands)),
        scale=problem.scale,
        scale_log2=problem.scale / math.log(2),
        **problem.reach(),
        stats_rows=rows_in(workspace.stats, 2),
        members=members,
        heads_kv=heads_kv,
        pairs=pairs,
        tiles=tiles,
        group=group_of(reread, config.section_mib, pairs),
        META=ColumnsMeta(
            **blocks_of(dim, dim_v),
            PAD=config.pad,
            **problem.flags(),
            GROUPED=members != 1,
            ATOMIC=sums is not None,
            TMA=tma,
            TMA_ADD=tma_add,
            ORDER=config.order,
            FUSED=config.mask == "fused" and tma and not problem.packed,
            BESIDE=config.add == "beside",
            STAGES=sizes.stages,
            **config.flags(sizes),
        ),
        **config.options(sizes),
    )


def _rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    dq: Tensor,
    problem: Problem,
    config: BackwardConfig,
    sizes: Tiles,
    workspace: Workspace,
) -> None:
    (heads, dim), (heads_kv, dim_v) = q.shape[-2:], v.shape[-2:]
    tiles, pairs = -(-problem.max_seqlen_q // sizes.block_m), problem.batch * heads
    if not tiles * pairs:
        return
    tma = config.loads == "tma" and takes_tma(k) and takes_tma(v)
    described = {
        name: descriptor(x, sizes.block_n, block_of(x.shape[-1])) if tma else None
        for name, x in (("k_desc", k), ("v_desc", v))
    }
    reread = problem.max_seqlen_k * (dim + dim_v) * k.element_size()
    operands = RowsOperands(q, k, v, dout, dq)
    launch(
        flash_backward_rows,
        (tiles * pairs,),
        tensors=operands,
        stats_ptr=workspace.stats,
        **described,
        **problem.lengths(),
        strides=RowsOperands(*map(strides_of, operands)),
        scale=problem.scale,
        scale_log2=problem.scale / math.log(2),
        **problem.reach(),
        stats_rows=rows_in(workspace.stats, 2),
        members=heads // heads_kv,
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        group=group_of(reread, config.section_mib, pairs),
        META=RowsMeta(**blocks_of(dim, dim_v), PAD=config.pad, **problem.flags(), TMA=tma, **config.flags(sizes)),
        **config.options(sizes),
    )


def _round(dq: Tensor, problem: Problem, config: BackwardConfig, workspace: Workspace) -> None:
    heads, dim = dq.shape[-2:]
    tiles = -(-problem.max_seqlen_q // ROUND_ROWS)
    programs = tiles * problem.batch * heads
    if not programs:
        return
    assert workspace.sums is not None
    launch(
        flash_backward_round,
        (programs,),
        sums_ptr=workspace.sums,
        dq_ptr=dq,
        cu_q_ptr=problem.cu_seqlens_q,
        seqlen_q=problem.max_seqlen_q,
        dq_strides=strides_of(dq),
        scale=problem.scale,
        stats_rows=rows_in(workspace.stats, 2),
        heads=heads,
        tiles=tiles,
        DIM=dim,
        BLOCK_D=block_of(dim),
        BLOCK_M=ROUND_ROWS,
        PAD=config.pad,
        PACKED=problem.packed,
        COLUMNS=config.columns_of_sums(dq.shape[-1]),
        PARTS=config.order == "ws",
        num_warps=4,
        **({"launch_pdl": True} if config.order == "ws" else {}),
    )


def _sums_descriptor(sums: Tensor, sizes: Tiles, columns: int) -> object:
    """Describe [H rows, D] in tiles [block_m, columns]; columns past the dims are not written."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    found = descriptor_of(
        TensorDescriptor,
        sums,
        [sums.shape[0] * sums.shape[1], sums.shape[2]],
        [sums.shape[2], 1],
        [sizes.block_m, columns],
    )
    return describes(found, shape={0: rows_in(sums, 1) * sums.shape[0]}, strides={})
