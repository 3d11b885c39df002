"""Launch the block-sparse forward that a configuration selects: portable or Hopper."""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.flash.portable.arguments import ForwardOperands
from attnbench.kernels.flash.problem import strides_of
from attnbench.kernels.flash.sparse.config import SparseConfig
from attnbench.kernels.flash.sparse.lists import BlockLists, check_lists
from attnbench.kernels.flash.sparse.portable.forward import ForwardMeta, flash_sparse_forward
from attnbench.kernels.flash.sparse.problem import SparseProblem
from attnbench.kernels.shared.kept import launch
from attnbench.kernels.shared.tiling import block_of

LOG2_E = 1.4426950408889634


def launch_sparse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    lists: BlockLists,
    problem: SparseProblem,
    config: SparseConfig,
) -> None:
    """Compute `out` and `lse` without synchronizing with the device.

    Args:
        q: [B, Sq, H, D]; last dim contiguous, also for the others.
        k: [B, Sk, G, D].
        v: [B, Sk, G, D].
        out: [B, Sq, H, D]; every row is written.
        lse: fp32 [B, H, Sq]; every row is written.
        lists: of the map, made for this problem.
        problem: lengths, blocks and mask; already checked.
        config: valid for the shape.

    Raises:
        ValueError: the lists were made for another problem or configuration, or the Hopper path was requested and cannot
            describe a tensor; the message says which.
    """
    rows = problem.block_q
    check_lists(lists, problem, share=config.share(rows), unit=config.unit(rows), device=q.device)
    _, heads, rows, columns = problem.map_shape
    all_lists = lists.items.shape[0]
    if all_lists == 0 or q.numel() == 0:
        return
    if config.order == "ws":
        from attnbench.kernels.flash.sparse.hopper.forward import launch_hopper_forward

        launch_hopper_forward(q=q, k=k, v=v, out=out, lse=lse, lists=lists, problem=problem, config=config)
        return
    operands = ForwardOperands(q, k, v, out)
    launch(
        flash_sparse_forward,
        (all_lists * (problem.block_q // config.block_m),),
        tensors=operands,
        lse_ptr=lse,
        items_ptr=lists.items,
        indices_ptr=lists.indices,
        seqlen_q=problem.seqlen_q,
        seqlen_k=problem.seqlen_k,
        strides=ForwardOperands(*map(strides_of, operands)),
        lse_batch=lse.stride(0),
        lse_head=lse.stride(1),
        scale=problem.scale * LOG2_E,
        heads=heads,
        repeats=heads // k.shape[2],
        rows=rows,
        columns=columns,
        META=ForwardMeta(
            DIM=q.shape[-1],
            BLOCK_D=block_of(q.shape[-1]),
            CAUSAL=problem.causal,
            BLOCK_Q=problem.block_q,
            BLOCK_K=problem.block_k,
            BLOCK_M=config.block_m,
            BLOCK_N=config.block_n,
        ),
        num_warps=config.warps,
        num_stages=config.stages,
    )
