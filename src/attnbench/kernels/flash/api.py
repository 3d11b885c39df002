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
from attnbench.kernels.shared.operators import cast, is_followed, needs_graph, refuse_followed

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
    """Attend, differentiably; see the letters above.

    Nothing waits for the device unless `validate` is set, so a call can be captured in a CUDA graph.

    Args:
        q: [B, Sq, H, D], or packed [Tq, H, D].
        k: [B, Sk, G, D], or packed [Tk, G, D].
        v: [B, Sk, G, Dv], or packed [Tk, G, Dv].
        causal: no key after a query's own position, which is bottom-right: the last query meets the last key.
        window: keys to the left and right of that position, -1 unbounded; any number past the sequence is as good.
        scale: of the scores; None: 1 / sqrt(D).
        cu_seqlens_q: int32 [B + 1] where packed: sequence b has the queries from [b] to [b + 1].
        cu_seqlens_k: the same of the keys; None: those of the queries.
        max_seqlen_q: at least the most queries of a sequence, needed where packed.
        max_seqlen_k: the same of the keys; None: max_seqlen_q.
        deterministic: of the backward: bitwise reproducible, as with `torch.use_deterministic_algorithms`; the
            forward always is.
        forward: launch configuration, or its name as on the command line (`flash.config.forward`), such as
            "m128n128w8s2-tma-pp" of the Hopper path; None: the tuned default.
        backward: launch configuration, or its name (`flash.config.backward`), such as "b64x128w8s2-atomic-tma-ws" of
            the Hopper path; None: the tuned default.
        validate: look into the offsets too, and wait for the device.

    Returns:
        out, shaped as q with Dv columns, contiguous; and lse, fp32 [B, H, Sq] or packed [1, H, Tq], -∞ for a query
        that sees no key, whose out is 0.  Gradients go through out alone.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.  One of the
            Hopper path is refused on another card than sm_90, in fp32, at dims it has not and of tensors it cannot
            describe; no other runs in its place.  Of the backward's some of that comes with the backward.  The order
            `ahead` is refused on sm_90, where it is wrong.
    """
    if deterministic is False:
        deterministic = torch.are_deterministic_algorithms_enabled()
    numbers = max_seqlen_q, max_seqlen_k, causal, window, scale, deterministic
    if is_followed(q, k, v, cu_seqlens_q, cu_seqlens_k):
        check_flags(WHO, causal=causal, deterministic=deterministic, validate=validate)
        refuse_followed(WHO, validate=validate)
        names = [x if x is None or isinstance(x, str) else x.short for x in (forward, backward)]
        return FORWARD(q, k, v, cu_seqlens_q, cu_seqlens_k, *numbers, *names)
    q, k, v = cast(q, k, v)
    call = call_of(q, k, v, cu_seqlens_q, cu_seqlens_k, *numbers, forward, backward, validate=validate)
    if needs_graph(q, k, v):
        return FlashAttention.call(q, k, v, cu_seqlens_q, cu_seqlens_k, call)
    out, lse = call.forward(q, k, v, cu_seqlens_q, cu_seqlens_k)
    assert out is not None
    assert lse is not None
    return out, lse
