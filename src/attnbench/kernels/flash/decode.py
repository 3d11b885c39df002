"""Launch the decode kernels, for few queries: attention over shares of the keys, and the merge of partial results."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.kernels.flash.config.decode import LARGEST_LIST, lead_of, programs_of, tiles_of_job
from attnbench.kernels.flash.config.forward import ForwardConfig
from attnbench.kernels.flash.config.space import decode_fault
from attnbench.kernels.flash.portable.arguments import CombineMeta, DecodeMeta, ForwardOperands
from attnbench.kernels.flash.portable.decode import decode_attend, decode_combine
from attnbench.kernels.flash.portable.forward import LOG2_E
from attnbench.kernels.flash.problem import Problem, blocks_of, descriptor, lse_strides, strides_of, takes_tma
from attnbench.kernels.shared.card import capability_of, processors
from attnbench.kernels.shared.kept import empty, launch, rows_in

FEW_COLUMNS, MANY_COLUMNS, MANY = 32, 128, 16
"Columns of a combine program, which is one warp: FEW_COLUMNS while an SM has at most MANY programs, else MANY_COLUMNS."
NUMBERS = 1024
"Elements of partial results that a combine program has in flight."


def launch_decode(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, problem: Problem, config: ForwardConfig
) -> None:
    """Compute `out` and `lse` without synchronizing; allocates only the partial results of jobs whose keys are divided.

    Args:
        q: [B, Sq, H, D] or packed [Tq, H, D]; last dim contiguous, also for the others.
        k: [B, Sk, G, D] or packed.
        v: [B, Sk, G, Dv] or packed.
        out: [B, Sq, H, Dv] or packed; every row is written.
        lse: fp32 `problem.lse_shape`; every row is written.
        problem: sequences, mask and scale; already checked.
        config: with the order decode.

    Raises:
        ValueError: the configuration has fields that this order does not support, or there are too many tiles; the message
            says which.
    """
    if wrong := decode_fault(config):
        raise ValueError(f"flash_attention: forward={config.short} {wrong}")
    (heads, dim), (heads_kv, dim_v) = q.shape[-2:], v.shape[-2:]
    if problem.batch * problem.max_seqlen_q * heads == 0 or q.numel() == 0:
        return
    blocks, repeats = blocks_of(dim, dim_v), heads // heads_kv
    rows = problem.max_seqlen_q * repeats
    row_tiles = -(-rows // config.block_m)
    jobs = problem.batch * heads_kv * row_tiles
    if problem.packed:  # lengths are unknown on the host: at most one tile more per sequence than for all keys together
        tiles = (rows_in(k) // config.block_n + problem.batch) * heads_kv * row_tiles
        programs = programs_of(config, tiles, processors(q))
        cut = programs > 1
    else:
        count = tiles_of_job(problem.max_seqlen_q, problem.max_seqlen_k, problem.left, problem.right, config.block_n)
        tiles = jobs * count
        programs = programs_of(config, tiles, processors(q), jobs)
        cut = jobs % programs != 0
    if tiles > LARGEST_LIST:
        raise ValueError(
            f"flash_attention: forward={config.short} lists {tiles} tiles of keys; at most {LARGEST_LIST}, "
            "larger tiles or another order"
        )
    even = not problem.packed and (jobs % programs == 0 or programs % jobs == 0)
    lead = 0 if even else lead_of(config, (dim + dim_v) * k.element_size(), jobs, tiles)
    # Launched while the first kernel runs, so that its start-up is over when that kernel ends.
    dependent = cut and (capability_of(q) or (0, 0)) >= (9, 0)
    parts = logs = None
    if cut:
        parts = empty((2 * programs, config.block_m, blocks["BLOCK_V"]), q, torch.float32)
        logs = empty((2 * programs, config.block_m), q, torch.float32)
    tma = config.loads == "tma" and not problem.packed and takes_tma(k) and takes_tma(v)
    described = {
        name: descriptor(x, config.block_n, blocks[columns]) if tma else None
        for name, x, columns in (("k_desc", k, "BLOCK_D"), ("v_desc", v, "BLOCK_V"))
    }
    reach = problem.reach()
    counts = {"batch": problem.batch, "heads_kv": heads_kv, "repeats": repeats, "row_tiles": row_tiles, "lead": lead}
    flags = problem.flags() | {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n}
    operands = ForwardOperands(q, k, v, out)
    launch(
        decode_attend,
        (programs,),
        tensors=operands,
        lse_ptr=lse,
        part_ptr=parts,
        part_lse_ptr=logs,
        **described,
        **problem.lengths(),
        strides=ForwardOperands(*map(strides_of, operands)),
        **lse_strides(lse, problem),
        scale=problem.scale * LOG2_E,
        **reach,
        **counts,
        META=DecodeMeta(**blocks, **flags, TMA=tma, PRECISION="ieee", CUT=cut, DEPENDENT=dependent),
        **config.options(),
    )
    if not cut:
        return
    narrow = problem.batch * problem.max_seqlen_q * heads * blocks["BLOCK_V"] <= MANY * processors(q) * FEW_COLUMNS
    columns = min(FEW_COLUMNS if narrow else MANY_COLUMNS, blocks["BLOCK_V"])
    launch(
        decode_combine,
        (problem.batch * problem.max_seqlen_q, heads, blocks["BLOCK_V"] // columns),
        out_ptr=out,
        lse_ptr=lse,
        part_ptr=parts,
        part_lse_ptr=logs,
        **problem.lengths(),
        out_strides=strides_of(out),
        **lse_strides(lse, problem),
        **reach,
        **counts,
        most=problem.max_seqlen_q,
        programs=programs,
        META=CombineMeta(
            DIM_V=dim_v,
            BLOCK_V=blocks["BLOCK_V"],
            **flags,
            COLUMNS=columns,
            PARTS=NUMBERS // columns,
            DEPENDENT=dependent,
        ),
        num_warps=1,
        **({"launch_pdl": True} if dependent else {}),
    )
