"""Launch the dense HSTU backward that a configuration selects: portable or Hopper."""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.hstu.arguments import RowStrides
from attnbench.kernels.hstu.dense.configs import BackwardConfig, ColumnConfig, RowConfig
from attnbench.kernels.hstu.dense.portable.arguments import ColumnsMeta, ColumnsStrides, RowsMeta, RowsStrides
from attnbench.kernels.hstu.dense.portable.backward import (
    hstu_dense_backward_columns,
    hstu_dense_backward_round,
    hstu_dense_backward_round_tiles,
    hstu_dense_backward_rows,
)
from attnbench.kernels.hstu.dense.problem import Problem, blocks_of, descriptor, takes_tma, wrong
from attnbench.kernels.hstu.tiles import SUMS_ROWS
from attnbench.kernels.shared.counts import RowCount
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
        workspace: fp32, contiguous, shaped as `workspace_shape`; None without atomics.

    Raises:
        ValueError: the Hopper kernel was requested and does not support this; the message says why.
    """
    sums = config.columns.sums
    if sums != "staged" and not config.columns.hopper:
        raise wrong("columns.sums", sums, "requires order=ws and over 128 dims", "staged")
    if config.columns.serial and not (config.columns.hopper and config.columns.atomic):
        raise wrong("columns.serial", True, "requires order=ws and atomic=True", "serial=False")
    if config.columns.serial:
        from attnbench.kernels.hstu.dense.hopper.backward_serial import launch_serial_backward

        assert workspace is not None
        launch_serial_backward(
            q=q, k=k, v=v, dout=dout, sums=workspace, dq=dq, dk=dk, dv=dv, problem=problem, config=config.columns
        )
        return
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
        if sums == "staged":
            _round(workspace, dq, problem, dependent=config.columns.hopper)
        else:
            _round_tiles(workspace, dq, problem)
        return
    if config.columns.hopper:
        raise wrong("columns.order", config.columns.order, "accumulates dQ by atomics", "atomic=True, or another order")
    assert config.rows is not None
    _columns(q=q, k=k, v=v, dout=dout, dq=dq, dk=dk, dv=dv, problem=problem, config=config.columns)
    _rows(q, k, v, dout, dq, problem, config.rows)


def workspace_shape(q: Tensor, problem: Problem, config: BackwardConfig) -> tuple[int | RowCount, ...] | None:
    """Shape of the fp32 workspace in which atomics accumulate dQ; None without atomics.

    It is [Tq, H, D].  Where dQ is added from registers it is [H, rows, columns]: tiles of 64 rows, each sequence beginning at
    a whole tile, and 128 or 256 columns.  With a serial reduction it has rows for one sequence of each program.
    """
    if not config.columns.atomic:
        return None
    if config.columns.serial:
        from attnbench.kernels.hstu.dense.hopper.backward_serial import serial_workspace_shape

        return serial_workspace_shape(q, problem)
    _, heads, attn_dim = q.shape
    if config.columns.sums == "staged":
        return rows_in(q), heads, attn_dim
    tile = SUMS_ROWS.value
    return heads, (rows_in(q) // tile + problem.batch) * tile, max(128, block_of(attn_dim))


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


def _round_tiles(sums: Tensor, dq: Tensor, problem: Problem) -> None:
    _, heads, attn_dim = dq.shape
    tiles = -(-problem.max_seqlen_q // SUMS_ROWS.value)
    programs = tiles * problem.batch * heads
    if not programs:
        return
    launch(
        hstu_dense_backward_round_tiles,
        (programs,),
        sums_ptr=sums,
        dq_ptr=dq,
        sequences=problem.sequences(),
        dq_strides=RowStrides.of(dq),
        sums_rows=rows_in(sums, 1),
        heads=heads,
        tiles=tiles,
        dq_scale=problem.alpha / problem.scaling_seqlen / 2,
        ATTN_DIM=attn_dim,
        BLOCK_D=block_of(attn_dim),
        COLUMNS=sums.shape[2],
        HAS_CACHE=problem.offsets_q is not None,
        num_warps=4,
        launch_pdl=True,
    )
