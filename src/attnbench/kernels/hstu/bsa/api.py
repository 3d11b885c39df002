"""Block-sparse HSTU attention over jagged sequences, forward and backward, for autograd or with the caller's buffers.

A sequence is ``[history | targets]``.  For a history row t (a target has the position after the history), c = 1 / N:

    compressed  g₀ BS c Σ_b SiLU(α q·k̄_b) v̄_b     complete blocks that end at or before t; k̄, v̄ their means
    selected    g₁ c Σ_j SiLU(α q·k_j) v_j          keys up to t of the local block and of the S - 1 complete blocks
                                                    before it with the largest α q·k̄; a target adds itself
    sliding     g₂ c Σ_j SiLU(α q·k_j) v_j          the last w keys

(After Yuan et al. 2025, arXiv:2502.11089, with SiLU as in Zhai et al. 2024, arXiv:2402.17152.)  Tests compare the kernels
with `attnbench.workloads.hstu.oracle_bsa`.  Pooling, ranking and lists are part of the call:

    hstu_bsa_pool     means of blocks                              reads K and V
    hstu_bsa_select   compressed branch, ranking, nearby keys      reads Q, K, V, writes O
    hstu_bsa_lists    for each block the queries that selected it  traffic of the indices
    hstu_bsa_attend   listed blocks, and the sum of partial rows   reads Q, K, V, O, writes O

The selection is treated as constant in the gradients.  Every sum of forward and backward has a fixed order, so results
are bitwise reproducible.  Letters: Tq, Tk packed queries and keys, H heads, D attention dim, Dv linear dim, B sequences.
Supports bf16, fp16 and fp32, dims 1 to 256, blocks of 16 to 128 keys, 1 to 16 blocks a query, any strides except the
last, and lengths from 0.
"""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.hstu.bsa.backward import BsaGradients, backward
from attnbench.kernels.hstu.bsa.call import BsaCall, allocate, forward_workspace
from attnbench.kernels.hstu.bsa.calls import HstuBsaAttention, Numbers, call_of, checked
from attnbench.kernels.hstu.bsa.forward import forward
from attnbench.kernels.hstu.bsa.inputs import WHO, BsaTensors, problem_of
from attnbench.kernels.hstu.bsa.operators import FORWARD
from attnbench.kernels.hstu.bsa.plan import BsaConfig, backward_shapes, changed_config, config_fault, default_config
from attnbench.kernels.hstu.bsa.problem import BsaProblem
from attnbench.kernels.shared.limits import as_float, check_flags
from attnbench.kernels.shared.operators import cast, needs_graph, needs_operator, refuse_in_operator

__all__ = [
    "BsaCall",
    "BsaConfig",
    "BsaGradients",
    "BsaProblem",
    "BsaTensors",
    "Numbers",
    "allocate",
    "backward",
    "backward_shapes",
    "call_of",
    "changed_config",
    "checked",
    "config_fault",
    "default_config",
    "forward",
    "forward_workspace",
    "hstu_bsa_attention",
    "problem_of",
]


def hstu_bsa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    max_seqlen: int,
    *,
    gates: Tensor | None = None,
    block_size: int = 32,
    block_counts: int = 4,
    local_window: int | None = None,
    selection: str = "head",
    pairs: bool = False,
    offsets_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    num_targets: Tensor | None = None,
    alpha: float | None = None,
    scaling_seqlen: int | None = None,
    config: BsaConfig | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Block-sparse SiLU attention of each sequence to itself, differentiable once; for the letters see above.

    Unless `validate` is set the call does not synchronize with the device, so it can be captured in a CUDA graph.

    Args:
        q: [Tq, H, D], sequences packed one after another.
        k: [Tk, H, D].
        v: [Tk, H, Dv].
        offsets: int [B + 1]; sequence b has the keys [b] to [b + 1].
        max_seqlen: upper bound of the keys of a sequence.
        gates: contiguous [Tq, H, 2], or 3 with `local_window`: factors of the branches; None: the branches are added
            without factors.
        block_size: keys of a block: 16, 32, 64 or 128.
        block_counts: blocks that a query selects, including its own: 1 to 16.
        local_window: rows of the sliding branch, including the query's own; None: no such branch.
        selection: head: each head selects its blocks; shared: one selection by the sum of the heads' scores.
        pairs: an odd row of a history selects the same blocks as the row before it.
        offsets_q: the same for queries, which are the last rows of each sequence; None: all rows are queries.
        max_seqlen_q: upper bound of the queries of a sequence; None: max_seqlen.
        num_targets: int [B], targets at the end of each sequence, which see no other target; None: none.
        alpha: factor of the scores, above 0; None: 1 / sqrt(D).
        scaling_seqlen: N, divisor of the outputs; None: max_seqlen.
        config: launch configuration; None: the default.
        validate: also check values inside the tensors (offsets, targets, NaN), which synchronizes with the device.

    Returns:
        The output [Tq, H, Dv], and the selected blocks, int32 [Tq, H, S] ([Tq, 1, S] if shared), ascending, padded with -1.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    table = offsets, offsets_q, num_targets
    numbers = Numbers(
        max_seqlen=max_seqlen,
        block_size=block_size,
        block_counts=block_counts,
        local_window=local_window,
        selection=selection,
        pairs=pairs,
        max_seqlen_q=max_seqlen_q,
        alpha=as_float(alpha),
        scaling_seqlen=scaling_seqlen,
    )
    if needs_operator(q, k, v, gates, *table):
        check_flags(WHO, pairs=pairs, validate=validate)
        refuse_in_operator(WHO, validate=validate, config=config)
        out, blocks, *_ = FORWARD(q, k, v, gates, *table, *numbers)
        return out, blocks
    q, k, v, gates = cast(q, k, v, gates)
    tensors = BsaTensors(q, k, v, gates, *table)
    call = call_of(tensors, numbers, config, validate=validate)
    if needs_graph(q, k, v, gates):
        return HstuBsaAttention.call(*tensors, call)
    out, blocks, *_ = call.forward(*tensors)
    assert out is not None
    assert blocks is not None
    return out, blocks
