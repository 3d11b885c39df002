"""Launch the dense HSTU forward that a configuration selects: portable or Hopper."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.kernels.hstu.arguments import RowStrides
from attnbench.kernels.hstu.dense.configs import ForwardConfig, hopper_fault
from attnbench.kernels.hstu.dense.hopper.forward import ForwardMeta as HopperMeta
from attnbench.kernels.hstu.dense.hopper.forward import hstu_hopper_forward
from attnbench.kernels.hstu.dense.parts import launch_sum, parts_of, workspace_of
from attnbench.kernels.hstu.dense.portable.arguments import ForwardMeta, ForwardStrides
from attnbench.kernels.hstu.dense.portable.forward import hstu_dense_forward
from attnbench.kernels.hstu.dense.problem import Problem, blocks_of, descriptor, takes_tma, wrong
from attnbench.kernels.shared.card import capability_of, processors
from attnbench.kernels.shared.hopper import ROWS, is_rows, rows_of
from attnbench.kernels.shared.kept import launch, zeros
from attnbench.kernels.shared.tiling import block_of, group_of

LARGEST_ITEMS = 2**31
"Most work items of a launch: kernels number them in 32 bits."


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, problem: Problem, config: ForwardConfig
) -> Tensor | None:
    """Compute `out` [Tq, H, Dv] without synchronizing with the device.

    Allocates only the four-byte counter of the tile scheduler, and fp32 partial sums where keys are split.

    Args:
        q: [Tq, H, D], last dim contiguous, also for the others.
        k: [Tk, H, D].
        v: [Tk, H, Dv].
        out: like v with the rows of q; every row is written.  None: return the partial sums instead.
        problem: sequences, mask and factors; already checked.
        config: tiles and code path.

    Returns:
        Without `out` the partial sums, not yet scaled: fp32 [Tq, parts, H, dim], padded to the columns of a tile, in the
        Hopper kernel's order of columns if the configuration selects that.

    Raises:
        ValueError: the Hopper path was requested and does not support something; the message says what.
    """
    (_, heads, attn_dim), linear_dim = q.shape, v.shape[2]
    tiles, pairs = -(-problem.max_seqlen_q // config.block_m), problem.batch * heads
    if tiles * pairs == 0 or q.shape[0] * heads * linear_dim == 0:
        return workspace_of(q, linear_dim, 1) if out is None else None
    if config.hopper:
        return _launch_hopper(q, k, v, out, problem, config)
    if config.parts is not None:
        raise wrong(
            "forward.parts",
            config.parts,
            f"is for the Hopper kernel, not for order={config.order}",
            "None, or order=ws",
        )
    tma = config.loads == "tma" and takes_tma(k) and takes_tma(v)
    k_desc, v_desc = (descriptor(x, config.block_n, block_of(x.shape[2])) if tma else None for x in (k, v))
    workspace = workspace_of(q, linear_dim, 1) if out is None else None
    into, scale = (out, 1 / problem.scaling_seqlen) if workspace is None else (workspace[:, 0], 1.0)
    launch(
        hstu_dense_forward,
        (tiles * pairs,),
        q_ptr=q,
        k_ptr=k,
        v_ptr=v,
        out_ptr=into,
        k_desc=k_desc,
        v_desc=v_desc,
        sequences=problem.sequences(),
        strides=ForwardStrides(*map(RowStrides.of, (q, k, v, into))),
        half_alpha=problem.alpha / 2,
        scale=scale,
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        group=group_of(problem.max_seqlen * (attn_dim + linear_dim) * k.element_size(), config.section_mib, pairs),
        contextual_len=problem.contextual_len,
        window=problem.max_attn_len or 0,
        META=ForwardMeta(
            **problem.flags(),
            **config.flags(),
            **blocks_of(attn_dim, linear_dim),
            TMA=tma,
            AHEAD=config.order == "ahead",
        ),
        **config.options(),
    )
    return workspace


def _launch_hopper(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, problem: Problem, config: ForwardConfig
) -> Tensor | None:
    """Launch the kernel for sm_90 on tensors that are not empty; return the partial sums if there is no `out`.

    Raises:
        ValueError: the card, the dtype, a dim or the strides of a tensor are not supported; the message says which.
    """
    (_, heads, attn_dim), linear_dim = q.shape, v.shape[2]
    fault = hopper_fault(
        config, capability=capability_of(q), item_bytes=q.element_size(), attn_dim=attn_dim, linear_dim=linear_dim
    )
    if fault:
        raise wrong("forward.order", config.order, fault, "another order")
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
        if x is not None and not is_rows(x):
            raise wrong(
                f"{name}.stride",
                x.stride(),
                f"is not a multiple of 16 bytes, as order={config.order} requires",
                "an aligned tensor, or another order",
            )
    tiles, pairs = -(-problem.max_seqlen_q // config.block_m), problem.batch * heads
    block_d, block_v = block_of(attn_dim), block_of(linear_dim)
    group = group_of(problem.max_seqlen * (attn_dim + linear_dim) * k.element_size(), config.section_mib, pairs)
    parts = _parts(q, v, problem, config, tiles * pairs)
    workspace = workspace_of(q, linear_dim, parts) if parts > 1 or out is None else None
    programs, counter = grid_of(tiles * pairs * parts, q)
    launch(
        hstu_hopper_forward,
        (programs,),
        q_desc=rows_of(q, ROWS.value, block_d),
        k_desc=rows_of(k, config.block_n, block_d),
        v_desc=rows_of(v, config.block_n, block_v),
        out_desc=rows_of(out, ROWS.value, block_v) if out is not None and workspace is None else None,
        parts_ptr=workspace,
        counter_ptr=counter,
        sequences=problem.sequences(),
        half_alpha=problem.alpha / 2,
        scale=1 / problem.scaling_seqlen,
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        group=group,
        parts=parts,
        contextual_len=problem.contextual_len,
        window=problem.max_attn_len or 0,
        META=HopperMeta(
            **problem.flags(),
            **config.hopper_flags(block_d, block_v),
            DRAWS=counter is not None,
            SPLIT=workspace is not None,
        ),
        num_warps=4,
        launch_pdl=workspace is not None,
    )
    if out is None:
        return workspace
    if workspace is not None:
        launch_sum(workspace, out, 1 / problem.scaling_seqlen, hopper=True)
    return None


def _parts(q: Tensor, v: Tensor, problem: Problem, config: ForwardConfig, items: int) -> int:
    """Parts of the keys: those of the configuration, otherwise as many as fill the card, if queries have a cache.

    Without a cache a row sees only the rows before it: tiles differ in work, which the tile scheduler balances.
    """
    if config.parts is None:
        return (
            1
            if problem.offsets_q is None
            else parts_of(
                items,
                config.block_m,
                problem.max_seqlen,
                config.block_n,
                q.shape[2] + v.shape[2],
                block_of(v.shape[2]),
                processors(q),
            )
        )
    if items * config.parts >= LARGEST_ITEMS:
        raise wrong("forward.parts", config.parts, f"gives {items * config.parts} work items", f"under {LARGEST_ITEMS}")
    return config.parts


def grid_of(items: int, x: Tensor) -> tuple[int, Tensor | None]:
    """Programs of a Hopper forward on the card of `x`, and the counter of its tile scheduler.

    With one work item per program there is no counter, so that no launch is needed to clear it.
    """
    programs = min(items, processors(x))
    return programs, zeros((1,), x, torch.int32) if items > programs else None
