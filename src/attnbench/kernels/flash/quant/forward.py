"""Launch the quantised forward that a configuration selects: portable or Hopper."""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.flash.problem import Problem, lse_strides, strides_of
from attnbench.kernels.flash.quant.config import QuantConfig
from attnbench.kernels.flash.quant.portable.forward import ForwardMeta, flash_quant_forward
from attnbench.kernels.flash.quant.prepare import Quantised
from attnbench.kernels.shared.kept import launch, rows_in
from attnbench.kernels.shared.tiling import group_of

SECTION_MIB = 16
"Heads are processed in sections whose keys and values take this much memory, so that they stay in the L2."


def launch_quant(made: Quantised, out: Tensor, lse: Tensor, problem: Problem, config: QuantConfig) -> None:
    """Compute `out` and `lse` from quantised tensors, without synchronizing with the device.

    Args:
        made: quantised for this problem.
        out: [B, Sq, H, D] or packed [Tq, H, D]; every row is written.
        lse: fp32 `flash.problem.lse_shape`; every row is written.
        problem: sequences, mask and scale; already checked.
        config: valid for the shape.
    """
    heads, dim = out.shape[-2:]
    heads_kv, columns = made.k.shape[0], made.k.shape[-1]
    tiles, pairs = -(-problem.max_seqlen_q // config.block_m), problem.batch * heads
    if tiles * pairs == 0 or out.numel() == 0:
        return
    section = group_of(problem.max_seqlen_k * 2 * columns, SECTION_MIB, problem.batch * heads_kv) * (heads // heads_kv)
    if config.order == "ws":
        from attnbench.kernels.flash.quant.hopper.forward import launch_hopper_forward

        launch_hopper_forward(made, out, lse, problem, config, section)
        return
    launch(
        flash_quant_forward,
        (tiles * pairs,),
        made=made.operands,
        out_ptr=out,
        lse_ptr=lse,
        **problem.lengths(),
        out_strides=strides_of(out),
        **lse_strides(lse, problem),
        heads=heads,
        repeats=heads // heads_kv,
        pairs=pairs,
        tiles=tiles,
        group=section,
        rows_q=rows_in(made.q, 1),
        rows_k=rows_in(made.k, 1),
        META=ForwardMeta(
            DIM=dim,
            COLUMNS=columns,
            HAS_RIGHT=problem.right is not None,
            PACKED=problem.packed,
            BLOCK_M=config.block_m,
            BLOCK_N=config.block_n,
        ),
        num_warps=config.warps,
        num_stages=config.stages,
    )
