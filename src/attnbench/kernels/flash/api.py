"""Softmax attention, forward and backward, for autograd and for callers with their own buffers.

    S = c Q Kᵀ        P = softmax(S, hidden keys at -∞)        O = P V
    dV = Pᵀ dO        dS = c P ∘ (dO Vᵀ - rowsum(dO ∘ O))       dQ = dS K        dK = dSᵀ Q

(Dao 2023, arXiv:2307.08691.)  `flash.problem` says what is masked.  Tests compare the kernels with
`attnbench.workloads.attention.oracle`.  The forward keeps lse, the logarithm of each row's sum, for the backward.

Letters: B sequences, H query heads, G KV heads, Sq queries, Sk keys, D head dim, Dv value dim; packed, Tq and Tk rows
of all sequences.  Takes bf16 and fp16 (fp32 for tests), dims 1 to 256, any strides but the last.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.kernels.flash.backward import launch_backward, workspace_of
from attnbench.kernels.flash.calls import WHO, FlashAttention, call_of, default_backward, default_forward
from attnbench.kernels.flash.config.backward import BackwardConfig, parse_backward
from attnbench.kernels.flash.config.forward import ForwardConfig, parse
from attnbench.kernels.flash.forward import launch_forward
from attnbench.kernels.flash.operators import FORWARD
from attnbench.kernels.flash.problem import Problem, check_values, lse_shape, problem_of
from attnbench.kernels.shared.limits import check_flags
from attnbench.kernels.shared.operators import cast, needs_graph, needs_operator, refuse_in_operator

__all__ = [
    "BackwardConfig",
    "ForwardConfig",
    "Problem",
    "check_values",
    "default_backward",
    "default_forward",
    "flash_attention",
    "launch_backward",
    "launch_forward",
    "lse_shape",
    "parse",
    "parse_backward",
    "problem_of",
    "workspace_of",
]


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    deterministic: bool = False,
    forward: ForwardConfig | str | None = None,
    backward: BackwardConfig | str | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Softmax attention, differentiable; for the letters see above.

    Unless `validate` is set the call does not synchronize with the device, so it can be captured in a CUDA graph.

    Args:
        q: [B, Sq, H, D], or packed [Tq, H, D].
        k: [B, Sk, G, D], or packed [Tk, G, D].
        v: [B, Sk, G, Dv], or packed [Tk, G, Dv].
        causal: hide keys after a query's own position, aligned bottom-right: the last query sees the last key.
        window: how many keys before and after that position a query sees, -1: unbounded; larger than the sequence is allowed.
        scale: factor of the scores; None: 1 / sqrt(D).
        cu_seqlens_q: int32 [B + 1] if packed: sequence b has the queries [b] to [b + 1].
        cu_seqlens_k: the same for keys; None: cu_seqlens_q.
        max_seqlen_q: upper bound of the queries of a sequence, required if packed.
        max_seqlen_k: the same for keys; None: max_seqlen_q.
        deterministic: compute a bitwise reproducible backward, as `torch.use_deterministic_algorithms` also requests; the
            forward always is.
        forward: launch configuration, or its name as on the command line (`flash.config.forward`), such as
            "m128n128w8s2-tma-pp" of the Hopper path; None: the tuned default.
        backward: launch configuration, or its name (`flash.config.backward`), such as "b64x128w8s2-atomic-tma-ws" of
            the Hopper path; None: the tuned default.
        validate: also check the values of the offsets, which synchronizes with the device.

    Returns:
        out, shaped as q with Dv columns, contiguous; and lse, fp32 [B, H, Sq] or packed [1, H, Tq], -∞ for a query
        that sees no key, whose out is 0.  Only out has a gradient.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.  A configuration of
            the Hopper path is refused on cards other than sm_90, in fp32, and for dims and tensors that it does not support;
            it is not replaced by another.  A backward configuration may be refused only when the backward runs.  The order
            `ahead` is refused on sm_90, where it gives wrong results.
    """
    if deterministic is False:
        deterministic = torch.are_deterministic_algorithms_enabled()
    numbers = max_seqlen_q, max_seqlen_k, causal, window, scale, deterministic
    if needs_operator(q, k, v, cu_seqlens_q, cu_seqlens_k):
        check_flags(WHO, causal=causal, deterministic=deterministic, validate=validate)
        refuse_in_operator(WHO, validate=validate)
        names = [getattr(x, "short", x) for x in (forward, backward)]
        return FORWARD(q, k, v, cu_seqlens_q, cu_seqlens_k, *numbers, *names)
    q, k, v = cast(q, k, v)
    call = call_of(q, k, v, cu_seqlens_q, cu_seqlens_k, *numbers, forward, backward, validate=validate)
    if needs_graph(q, k, v):
        return FlashAttention.call(q, k, v, cu_seqlens_q, cu_seqlens_k, call)
    out, lse = call.forward(q, k, v, cu_seqlens_q, cu_seqlens_k)
    assert out is not None
    assert lse is not None
    return out, lse
