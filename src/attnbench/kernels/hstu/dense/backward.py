"""Launch the dense HSTU backward that a configuration selects: portable or Hopper."""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.hstu.arguments import RowStrides
from attnbench.kernels.hstu.dense.configs import BackwardConfig, ColumnConfig, RowConfig
from attnbench.kernels.hstu.dense.portable.arguments import ColumnsMeta, ColumnsStrides, RowsMeta, RowsStrides
from attnbench.kernels.hstu.dense.portable.backward import (
    hstu_dense_backward_columns,
    hstu_dense_backward_round,
    hstu_dense_backward_rows,
)
from attnbench.kernels.hstu.dense.problem import Problem, blocks_of, descriptor, takes_tma, wrong
from attnbench.kernels.shared.kept import clear, launch, rows_in
from attnbench.kernels.shared.tiling import block_of, group_of


def launch_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    problem: Problem,
    config: BackwardConfig,
    workspace: Tensor | None,
) -> None:
    """Compute dq, dk and dv into their tensors, without allocating and without synchronizing.

    Args:
        q: [Tq, H, D], last dim contiguous, also for the others.
        k: [Tk, H, D].
        v: [Tk, H, Dv].
        dout: [Tq, H, Dv].
        dq: like q; every row is written, also for dk and dv.
        dk: like k.
        dv: like v.
        problem: sequences, mask and factors; already checked.
        config: tiles, code path, and whether atomics accumulate dQ.
        workspace: fp32 [Tq, H, D], contiguous, with atomics (`workspace_shape`).

    Raises:
        ValueError: the Hopper kernel was requested and does not support this; the message says why.
    """
    if config.columns.atomic:
        assert workspace is not None
        clear(workspace)
        if config.columns.hopper:
            from attnbench.kernels.hstu.dense.hopper.backward import launch_hopper_backward

            launch_hopper_backward(
                q=q, k=k, v=v, dout=dout, sums=workspace, dk=dk, dv=dv, problem=problem, config=config.columns
            )
        else:
            _columns(q=q, k=k, v=v, dout=dout, dq=workspace, dk=dk, dv=dv, problem=problem, config=config.columns)
        _round(workspace, dq, problem, dependent=config.columns.hopper)
        return
    if config.columns.hopper:
        raise wrong("columns.order", config.columns.order, "accumulates dQ by atomics", "atomic=True, or another order")
    assert config.rows is not None
    _columns(q=q, k=k, v=v, dout=dout, dq=dq, dk=dk, dv=dv, problem=problem, config=config.columns)
    _rows(q, k, v, dout, dq, problem, config.rows)


def workspace_shape(q: Tensor, config: BackwardConfig) -> tuple[int, ...] | None:
    """Shape of the fp32 workspace: 4 D bytes for each query and head where atomics accumulate dQ, otherwise None."""
    return tuple(q.shape) if config.columns.atomic else None


def _columns(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    problem: Problem,
    config: ColumnConfig,
) -> None:
    (_, heads, attn_dim), linear_dim = q.shape, v.shape[2]
    tiles, pairs = -(-problem.max_seqlen // config.block_n), problem.batch * heads
    if tiles * pairs == 0:
        return
    reread = problem.max_seqlen_q * (attn_dim + linear_dim) * q.element_size()
    if config.atomic:
        reread += problem.max_seqlen_q * attn_dim * dq.element_size()
    through = (q, dout, dq) if config.atomic else (q, dout)
    tma = config.loads == "tma" and all(map(takes_tma, through))
    q_desc, dout_desc, dq_desc = (
        descriptor(x, config.block_m, block_of(x.shape[2])) if tma and taken else None
        for x, taken in ((q, True), (dout, True), (dq, config.atomic))
    )
    for part in ("dv", "dk") if config.split else ("both",):
        launch(
            hstu_dense_backward_columns,
            (tiles * pairs,),
            q_ptr=q,
            k_ptr=k,
            v_ptr=v,
            dout_ptr=dout,
            dq_ptr=dq,
            dk_ptr=dk,
            dv_ptr=dv,
            q_desc=q_desc,
            dout_desc=dout_desc,
            dq_desc=dq_desc,
            sequences=problem.sequences(),
            strides=ColumnsStrides(*map(RowStrides.of, (q, k, v, dout, dq, dk, dv))),
            half_alpha=problem.alpha / 2,
            dk_scale=problem.alpha / problem.scaling_seqlen / 2,
            dv_scale=1 / problem.scaling_seqlen,
            heads=heads,
            pairs=pairs,
            tiles=tiles,
            group=group_of(reread, config.section_mib, pairs),
            contextual_len=problem.contextual_len,
            window=problem.max_attn_len or 0,
            META=ColumnsMeta(
                **problem.flags(),
                **config.flags(),
                **blocks_of(attn_dim, linear_dim),
                ATOMIC=config.atomic and part != "dv",
                TMA=tma,
                PART=part,
            ),
            **config.options(),
        )


def _rows(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, dq: Tensor, problem: Problem, config: RowConfig) -> None:
    (_, heads, attn_dim), linear_dim = q.shape, v.shape[2]
    tiles, pairs = -(-problem.max_seqlen_q // config.block_m), problem.batch * heads
    if tiles * pairs == 0:
        return
    reread = problem.max_seqlen * (attn_dim + linear_dim) * k.element_size()
    tma = config.loads == "tma" and takes_tma(k) and takes_tma(v)
    k_desc, v_desc = (descriptor(x, config.block_n, block_of(x.shape[2])) if tma else None for x in (k, v))
    launch(
        hstu_dense_backward_rows,
        (tiles * pairs,),
        q_ptr=q,
        k_ptr=k,
        v_ptr=v,
        dout_ptr=dout,
        dq_ptr=dq,
        k_desc=k_desc,
        v_desc=v_desc,
        sequences=problem.sequences(),
        strides=RowsStrides(*map(RowStrides.of, (q, k, v, dout, dq))),
        half_alpha=problem.alpha / 2,
        dq_scale=problem.alpha / problem.scaling_seqlen / 2,
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        group=group_of(reread, config.section_mib, pairs),
        contextual_len=problem.contextual_len,
        window=problem.max_attn_len or 0,
        META=RowsMeta(**problem.flags(), **config.flags(), **blocks_of(attn_dim, linear_dim), TMA=tma),
        **config.options(),
    )


def _round(total: Tensor, dq: Tensor, problem: Problem, *, dependent: bool) -> None:
    _, heads, dims = dq.shape
    rows = rows_in(dq) * heads
    if dq.numel() == 0:
        return
    together = 4096 // block_of(dims)
    launch(
        hstu_dense_backward_round,
        (rows.parts(together),),
        sum_ptr=total,
        dq_ptr=dq,
        dq_strides=RowStrides.of(dq),
        rows=rows,
        heads=heads,
        dq_scale=problem.alpha / problem.scaling_seqlen / 2,
        ATTN_DIM=dims,
        BLOCK_D=block_of(dims),
        ROWS=together,
        DEPENDENT=dependent,
        num_warps=4,
        **({"launch_pdl": True} if dependent else {}),
    )
