"""Dense HSTU attention over jagged sequences, forward and backward, for autograd and for callers with their own buffers.

    S = α Q Kᵀ        A = SiLU(S) ∘ M / N        O = A V        SiLU(x) = x σ(x)
    dV = Aᵀ dO        dS = (dO Vᵀ) ∘ M / N ∘ σ(S)(1 + S(1 - σ(S)))        dQ = α dS K        dK = α dSᵀ Q

(Zhai et al. 2024, arXiv:2402.17152.)  `hstu.tiles` defines the mask M.  Tests compare the kernels with
`attnbench.workloads.hstu.oracle`.  With P visible (query, key) pairs of a head, D = attention dim and Dv = linear dim,
the forward takes 2 P (D + Dv) FLOPs and the backward 2 P (3 D + 2 Dv); a deterministic backward executes two more
products, 2 P (D + Dv), and partly visible tiles are computed whole.  Workspace of the forward: none, or the four bytes of
a tile counter.  Of the backward: none if deterministic, otherwise 4 D bytes for each query and head.

Letters: Tq, Tk packed queries and keys, H heads, D attention dim, Dv linear dim, B sequences.  Supports bf16, fp16 and
fp32, dims 1 to 256, any strides except the last, lengths from 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.kernels.hstu.arguments import Parts
from attnbench.kernels.hstu.dense.backward import launch_backward, workspace_shape
from attnbench.kernels.hstu.dense.calls import (
    HstuAttention,
    attend_parts,
    call_of,
    configs_of,
    default_backward,
    default_forward,
)
from attnbench.kernels.hstu.dense.configs import (
    BackwardConfig,
    ColumnConfig,
    ForwardConfig,
    RowConfig,
    backward_config,
    forward_config,
)
from attnbench.kernels.hstu.dense.forward import launch_forward
from attnbench.kernels.hstu.dense.operators import FORWARD
from attnbench.kernels.hstu.dense.parts import launch_sum
from attnbench.kernels.hstu.dense.problem import WHO, Problem, check_tensors, check_values
from attnbench.kernels.shared.limits import check_flags
from attnbench.kernels.shared.operators import cast, needs_graph, needs_operator, refuse_in_operator
from attnbench.kernels.shared.tiling import block_of

__all__ = [
    "BackwardConfig",
    "ColumnConfig",
    "ForwardConfig",
    "Problem",
    "RowConfig",
    "backward_config",
    "check_tensors",
    "check_values",
    "configs_of",
    "default_backward",
    "default_forward",
    "forward_config",
    "hstu_attention",
    "hstu_attention_parts",
    "hstu_sum",
    "launch_backward",
    "launch_forward",
    "workspace_shape",
]


def hstu_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    max_seqlen: int,
    *,
    offsets_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    num_targets: Tensor | None = None,
    alpha: float | None = None,
    scaling_seqlen: int | None = None,
    causal: bool = True,
    contextual_len: int = 0,
    max_attn_len: int | None = None,
    deterministic: bool = False,
    forward: ForwardConfig | None = None,
    backward: BackwardConfig | None = None,
    validate: bool = False,
) -> Tensor:
    """SiLU attention of each sequence to itself, differentiable once; for the letters see above.

    Unless `validate` is set the call does not synchronize with the device, so it can be captured in a CUDA graph.

    Args:
        q: [Tq, H, D], sequences packed one after another.
        k: [Tk, H, D].
        v: [Tk, H, Dv].
        offsets: int [B + 1]; sequence b has the keys [b] to [b + 1].
        max_seqlen: upper bound of the keys of a sequence.
        offsets_q: the same for queries, which are the last rows of each sequence; None: all rows are queries.
        max_seqlen_q: upper bound of the queries of a sequence; None: max_seqlen.
        num_targets: int [B], targets at the end of each sequence, which see no other target; None: none.
        alpha: factor of the scores; None: 1 / sqrt(D).
        scaling_seqlen: N, divisor of the outputs; None: max_seqlen.
        causal: a row of the history sees no later key.
        contextual_len: number of prefix rows of each sequence, which see all of its history.
        max_attn_len: how many rows back a row sees; None: all.
        deterministic: compute a bitwise reproducible backward, with seven products instead of five, as
            `torch.use_deterministic_algorithms` also requests; the forward always is.
        forward: launch configuration; None: the tuned default, which is the Hopper kernel's if that supports the tensors
            (sm_90, 16 bits, rows and strides multiples of 16 bytes), otherwise the portable kernel's (`default_forward`).
            One of the Hopper kernel is `ForwardConfig(block_m=128, block_n=128, warps=8, stages=2, order="ws")`.
        backward: launch configuration; None: the tuned default, chosen likewise; with deterministic=True the portable one.
            The Hopper kernel has columns with order="ws" and atomic=True; a dO that it cannot describe is copied.
        validate: also check values inside the tensors (offsets, targets, NaN), which synchronizes with the device.

    Returns:
        [Tq, H, Dv], contiguous.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.  A configuration of
            the Hopper path is refused on cards other than sm_90, in fp32, and for dims and tensors that it does not support;
            it is not replaced by another.  A backward configuration may be refused only when the backward runs.
    """
    table = offsets, offsets_q, num_targets
    if deterministic is False:
        deterministic = torch.are_deterministic_algorithms_enabled()
    numbers: tuple[Any, ...] = (
        max_seqlen,
        max_seqlen_q,
        alpha,
        scaling_seqlen,
        causal,
        contextual_len,
        max_attn_len,
        deterministic,
    )
    if needs_operator(q, k, v, *table):
        check_flags(WHO, causal=causal, deterministic=deterministic, validate=validate)
        refuse_in_operator(WHO, validate=validate, forward=forward, backward=backward)
        out: Tensor = FORWARD(q, k, v, *table, *numbers)
        return out
    q, k, v = cast(q, k, v)
    call = call_of(q, k, v, *(*table, *numbers, forward, backward), validate=validate)
    if needs_graph(q, k, v):
        return HstuAttention.call(q, k, v, *table, call)
    (found,) = call.forward(q, k, v, *table)
    assert found is not None
    return found


def hstu_attention_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    max_seqlen: int,
    *,
    offsets_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    alpha: float | None = None,
    scaling_seqlen: int | None = None,
    causal: bool = False,
) -> Parts:
    """Attention over some of each sequence's keys, before it is rounded: sums to which those over other keys are added.

    SiLU attention has no normaliser that depends on the keys, so the sums over parts of the keys add up to the output
    over all of them.  Forward only.  The call does not synchronize with the device.

    Args:
        q: [Tq, H, D], sequences packed one after another.
        k: [Tk, H, D], some keys of each sequence.
        v: [Tk, H, Dv].
        offsets: int [B + 1]; sequence b has the keys [b] to [b + 1].
        max_seqlen: upper bound of the keys of a sequence.
        offsets_q: the same for queries; None: as for keys.  Without a mask there may be more queries than keys; with
            causal=True queries are the last rows of their sequence, and at most as many.
        max_seqlen_q: upper bound of the queries of a sequence; None: max_seqlen.
        alpha: factor of the scores; None: 1 / sqrt(D).
        scaling_seqlen: N, divisor of the sum: that of the whole sequences; None: max_seqlen.
        causal: a row sees no later key.

    Returns:
        Unscaled sums, fp32 [Tq, parts, H, dim], and the factor 1 / N.  They may be added to others of the same q, whose order
        of columns is the same, and are for `hstu_sum`.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if needs_graph(x):
            raise ValueError(f"hstu_attention_parts: {name} needs a gradient, which is not computed; a detached tensor")
    return attend_parts(
        q=q,
        k=k,
        v=v,
        offsets=offsets,
        offsets_q=offsets_q,
        max_seqlen=max_seqlen,
        max_seqlen_q=max_seqlen_q,
        alpha=alpha,
        scaling_seqlen=scaling_seqlen,
        causal=causal,
    )


def hstu_sum(parts: Parts, out: Tensor) -> None:
    """Write the sum of parts to an output: added in fp32 in their order, scaled, and rounded once.

    Args:
        parts: of `hstu_attention_parts`, contiguous.
        out: [Tq, H, Dv], contiguous; overwritten.

    Raises:
        ValueError: the shapes do not fit, or a tensor is not contiguous.
    """
    rows, heads, dim = out.shape
    shape = rows, parts.sums.shape[1], heads, block_of(dim)
    if tuple(parts.sums.shape) != shape or not parts.sums.is_contiguous():
        raise ValueError(f"hstu_sum: parts={tuple(parts.sums.shape)} does not fit; contiguous {shape}")
    if not out.is_contiguous():
        raise ValueError(f"hstu_sum: out.stride={out.stride()} has gaps; contiguous")
    if out.numel():
        launch_sum(parts.sums, out, parts.scale, hopper=parts.shuffled)
