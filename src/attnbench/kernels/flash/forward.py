"""Launch the flash forward that a configuration selects: portable, decode, or Hopper."""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.flash.config.forward import DECODE, HOPPER, ForwardConfig
from attnbench.kernels.flash.config.space import ahead_fault
from attnbench.kernels.flash.decode import launch_decode
from attnbench.kernels.flash.portable.arguments import ForwardMeta, ForwardOperands
from attnbench.kernels.flash.portable.forward import LOG2_E, flash_forward
from attnbench.kernels.flash.problem import Problem, blocks_of, descriptor, lse_strides, strides_of, takes_tma
from attnbench.kernels.shared.card import capability_of, processors
from attnbench.kernels.shared.kept import launch
from attnbench.kernels.shared.tiling import group_of


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, problem: Problem, config: ForwardConfig
) -> None:
    """Compute `out` and `lse` without synchronizing; allocates only what the launcher of the configuration's order does.

    Args:
        q: [B, Sq, H, D] or packed [Tq, H, D]; last dim contiguous, also for the others.
        k: [B, Sk, G, D] or packed.
        v: [B, Sk, G, Dv] or packed.
        out: [B, Sq, H, Dv] or packed; every row is written.
        lse: fp32 `problem.lse_shape`; every row is written.
        problem: sequences, mask and scale; already checked.
        config: tiles and code path.

    Raises:
        ValueError: the Hopper path was requested and cannot describe a tensor, or the order gives wrong results on this
            card; the message says which.
    """
    if config.order == "ahead" and (wrong := ahead_fault(config, capability_of(q))):
        raise ValueError(f"flash_attention: forward={config.short} {wrong}")
    if config.order in HOPPER:
        from attnbench.kernels.flash.hopper.forward import launch_hopper_forward

        launch_hopper_forward(q, k, v, out, lse, problem, config)
        return
    if config.order == DECODE:
        launch_decode(q, k, v, out, lse, problem, config)
        return
    (heads, dim), (heads_kv, dim_v) = q.shape[-2:], v.shape[-2:]
    tiles, pairs = -(-problem.max_seqlen_q // config.block_m), problem.batch * heads
    if tiles * pairs == 0 or q.numel() == 0:
        return
    blocks = blocks_of(dim, dim_v)
    tma = config.loads == "tma" and takes_tma(k) and takes_tma(v)
    described = {
        name: descriptor(x, config.block_n, blocks[columns]) if tma else None
        for name, x, columns in (("k_desc", k, "BLOCK_D"), ("v_desc", v, "BLOCK_V"))
    }
    section = group_of(
        problem.max_seqlen_k * (dim + dim_v) * k.element_size(), config.section_mib, problem.batch * heads_kv
    ) * (heads // heads_kv)
    programs = min(tiles * pairs, processors(q)) if config.grid == "persistent" else tiles * pairs
    operands = ForwardOperands(q, k, v, out)
    launch(
        flash_forward,
        (programs,),
        tensors=operands,
        lse_ptr=lse,
        **described,
        **problem.lengths(),
        strides=ForwardOperands(*map(strides_of, operands)),
        **lse_strides(lse, problem),
        scale=problem.scale * LOG2_E,
        **problem.reach(),
        heads=heads,
        repeats=heads // heads_kv,
        pairs=pairs,
        tiles=tiles,
        group=section,
        META=ForwardMeta(**blocks, **problem.flags(), **config.flags(packed=problem.packed, tma=tma)),
        **config.options(),
    )
