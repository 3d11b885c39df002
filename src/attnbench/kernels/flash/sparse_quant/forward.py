"""Launch the block-sparse forward in 8 bits that a configuration selects: portable or Hopper."""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.flash.problem import strides_of
from attnbench.kernels.flash.quant.prepare import Quantised
from attnbench.kernels.flash.sparse.lists import BlockLists, check_lists
from attnbench.kernels.flash.sparse.problem import SparseProblem
from attnbench.kernels.flash.sparse_quant.config import SparseQuantConfig
from attnbench.kernels.flash.sparse_quant.portable.forward import ForwardMeta, flash_sparse_quant_forward
from attnbench.kernels.flash.sparse_quant.problem import refused_here
from attnbench.kernels.shared.kept import launch


def launch_sparse_quant(
    made: Quantised, out: Tensor, lse: Tensor, lists: BlockLists, problem: SparseProblem, config: SparseQuantConfig
) -> None:
    """Compute `out` and `lse` from quantised tensors, without synchronizing with the device.

    Args:
        made: quantised for this problem, without offsets.
        out: [B, Sq, H, D]; every row is written.
        lse: fp32 [B, H, Sq]; every row is written.
        lists: of the map, one for each of its rows, made for this problem.
        problem: lengths, blocks and mask; already checked.
        config: valid for the shape.

    Raises:
        ValueError: the lists were made for another problem, or are shared by rows; the message says which.
    """
    with refused_here():
        check_lists(lists, problem, share=1, unit=problem.block_q, device=out.device)
    if lists.items.shape[0] == 0 or out.numel() == 0:
        return
    if config.order == "ws":
        from attnbench.kernels.flash.sparse_quant.hopper.forward import launch_hopper_forward

        launch_hopper_forward(made, out, lse, lists, problem, config)
        return
    _, heads, rows, columns = problem.map_shape
    strides = strides_of(out)
    launch(
        flash_sparse_quant_forward,
        (lists.items.shape[0] * (problem.block_q // config.block_m),),
        made=made.operands,
        out_ptr=out,
        lse_ptr=lse,
        items_ptr=lists.items,
        indices_ptr=lists.indices,
        seqlen_q=problem.seqlen_q,
        seqlen_k=problem.seqlen_k,
        out_batch=strides.batch,
        out_row=strides.row,
        out_head=strides.head,
        lse_batch=lse.stride(0),
        lse_head=lse.stride(1),
        heads=heads,
        repeats=heads // made.k.shape[0],
        rows=rows,
        columns=columns,
        rows_q=made.q.shape[1],
        rows_k=made.k.shape[1],
        META=ForwardMeta(
            DIM=out.shape[-1],
            COLUMNS=made.q.shape[-1],
            CAUSAL=problem.causal,
            BLOCK_Q=problem.block_q,
            BLOCK_K=problem.block_k,
            BLOCK_M=config.block_m,
            BLOCK_N=config.block_n,
        ),
        num_warps=config.warps,
        num_stages=config.stages,
    )
