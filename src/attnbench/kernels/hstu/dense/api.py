"""Dense HSTU attention over jagged sequences, forward and backward, for autograd and for callers with own buffers.

    S = α Q Kᵀ        A = SiLU(S) ∘ M / N        O = A V        SiLU(x) = x σ(x)
    dV = Aᵀ dO        dS = (dO Vᵀ) ∘ M / N ∘ σ(S)(1 + S(1 - σ(S)))        dQ = α dS K        dK = α dSᵀ Q

(Zhai et al. 2024, arXiv:2402.17152.)  `hstu.tiles` says what the mask M is.  The truth these kernels are held
against is `attnbench.workloads.hstu.oracle`.  With P visible (query, key) pairs of a head, D = attention dim and
Dv = linear dim, the forward is 2 P (D + Dv) FLOPs and the backward 2 P (3 D + 2 Dv); it executes two products more,
2 P (D + Dv), where it is deterministic, and tiles whole.  Workspace: none forward (four bytes where jobs
are drawn) and none of the deterministic backward; 4 D bytes a query and head of the one with atomics.

Letters: Tq, Tk packed queries and keys, H heads, D attention dim, Dv linear dim, B sequences.  Takes bf16, fp16 and
fp32, dims 1 to 256, any strides but the last, lengths from 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.kernels.hstu.dense.backward import launch_backward, workspace_shape
from attnbench.kernels.hstu.dense.calls import HstuAttention, call_of, configs_of, default_backward, default_forward
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
from attnbench.kernels.hstu.dense.problem import WHO, Problem, check_tensors, check_values
from attnbench.kernels.shared.limits import check_flags
from attnbench.kernels.shared.operators import cast, is_followed, needs_graph, refuse_followed

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
    """SiLU attention of each sequence to itself, differentiable once; see the letters above.

    Nothing waits for the device unless `validate` is set, so a call can be captured in a CUDA graph.

    Args:
        q: [Tq, H, D], the sequences one after another.
        k: [Tk, H, D].
        v: [Tk, H, Dv].
        offsets: int [B + 1]; sequence b has the keys from [b] to [b + 1].
        max_seqlen: at least the most keys of a sequence.
        offsets_q: the same of the queries, which are the last rows of each sequence; None: all rows are queries.
        max_seqlen_q: at least the most queries of a sequence; None: max_seqlen.
        num_targets: int [B], targets at the end of each sequence, which see no other target; None: none.
        alpha: factor of the scores; None: 1 / sqrt(D).
        scaling_seqlen: N, what outputs are divided by; None: max_seqlen.
        causal: a row of the history sees no later key.
        contextual_len: rows at the front of each sequence that see all of its history.
        max_attn_len: a row sees at most so many rows back; None: all.
        deterministic: of the backward: bitwise reproducible, at seven products instead of five, as with
            `torch.use_deterministic_algorithms`; the forward always is.
        forward: launch configuration; None: the tuned default, which is of the kernel for Hopper where that takes the
            tensors (sm_90, 16 bits, rows and strides of whole 16 bytes) and else the portable one; `default_forward`
            says which.  `ForwardConfig(block_m=128, block_n=128, warps=8, stages=2, order="ws")` is one for Hopper.
        backward: launch configuration; None: the tuned default, chosen alike, with deterministic=True the portable one.
            Columns with order="ws" and atomic=True are those for Hopper; a dO that they cannot describe is copied.
        validate: look into the tensors too, once, and wait for the device: offsets, targets, NaN.

    Returns:
        [Tq, H, Dv], contiguous.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.  One given for
            Hopper is refused on another card than sm_90, in fp32, at dims it has not and of tensors it cannot describe;
            no other runs in its place.  Of the backward's some of that comes with the backward.
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
    if is_followed(q, k, v, *table):
        check_flags(WHO, causal=causal, deterministic=deterministic, validate=validate)
        refuse_followed(WHO, validate=validate, forward=forward, backward=backward)
        out: Tensor = FORWARD(q, k, v, *table, *numbers)
        return out
    q, k, v = cast(q, k, v)
    call = call_of(q, k, v, *(*table, *numbers, forward, backward), validate=validate)
    if needs_graph(q, k, v):
        return HstuAttention.call(q, k, v, *table, call)
    (found,) = call.forward(q, k, v, *table)
    assert found is not None
    return found
