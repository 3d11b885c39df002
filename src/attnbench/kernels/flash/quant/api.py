"""Quantised softmax attention, forward: 8-bit products, 16-bit tensors in and out.

    S = c Q (K - m)ᵀ        P = softmax(S, hidden keys at -∞)        O = P V

m is the mean of a sample of the head's keys (`portable.channels`).  Subtracting it shifts all scores of a row equally,
which does not change the softmax; lse is corrected for it.  Q and K are rounded to int8, V and P to e4m3 (Zhang et al.
2024, arXiv:2411.10958); the sum of P V is accumulated in fp32 after each tile of 128 keys.  Letters: `quant.problem`.
Supports bf16 and fp16, dims 1 to 128, padded to 64 or 128.

A row of Q that is not finite makes its own output NaN.  A key that is not finite makes NaN of all rows of its head if it
is in the sample; else of those that see a key of its tile of 128, and of others in a tile of queries with such a row.  A V
that is not finite makes its channel NaN.  Rows and channels whose values are all below 2⁻⁶⁰ count as 0.
"""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.flash.problem import lse_shape
from attnbench.kernels.flash.quant.calls import call, config_for
from attnbench.kernels.flash.quant.config import QuantConfig
from attnbench.kernels.flash.quant.forward import launch_quant
from attnbench.kernels.flash.quant.operators import FORWARD
from attnbench.kernels.flash.quant.prepare import Quantised, allocate, launch_prepare, launch_quantise, launch_smooth
from attnbench.kernels.flash.quant.problem import WHO, check_offsets, quant_problem_of
from attnbench.kernels.shared.limits import check_flags
from attnbench.kernels.shared.operators import cast, needs_operator, refuse_in_operator

__all__ = [
    "QuantConfig",
    "Quantised",
    "allocate",
    "check_offsets",
    "config_for",
    "flash_quant_attention",
    "launch_prepare",
    "launch_quant",
    "launch_quantise",
    "launch_smooth",
    "lse_shape",
    "quant_problem_of",
]


def flash_quant_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    config: QuantConfig | str | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention in 8 bits; forward only, without gradients.

    Unless `validate` is set the call does not synchronize with the device, so it can be captured in a CUDA graph.

    Args:
        q: [B, Sq, H, D], or packed [Tq, H, D].
        k: [B, Sk, G, D], or packed [Tk, G, D].
        v: [B, Sk, G, D], or packed [Tk, G, D].
        causal: hide keys after a query's own position, aligned bottom-right: the last query sees the last key.
        scale: factor of the scores; None: 1 / sqrt(D).
        cu_seqlens_q: int32 [B + 1] if packed: sequence b has the queries [b] to [b + 1].
        cu_seqlens_k: the same for keys; None: cu_seqlens_q.
        max_seqlen_q: upper bound of the queries of a sequence, required if packed.
        max_seqlen_k: the same for keys; None: max_seqlen_q.
        config: launch configuration, or its name (`quant.config`), such as "m192n128w12s4-ws" of the Hopper path; None:
            the tuned default.
        validate: also check the values of the offsets, which synchronizes with the device.

    Returns:
        out, shaped as q, contiguous; and lse, fp32 [B, H, Sq] or packed [1, H, Tq], -∞ for a query that sees no key,
        whose out is 0.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.  A configuration
            of the Hopper path is refused on other cards and dims; it is not replaced by another.
    """
    numbers = max_seqlen_q, max_seqlen_k, causal, scale
    if needs_operator(q, k, v, cu_seqlens_q, cu_seqlens_k):
        check_flags(WHO, causal=causal, validate=validate)
        refuse_in_operator(WHO, validate=validate)
        name = getattr(config, "short", config)
        found: tuple[Tensor, Tensor] = FORWARD(q, k, v, cu_seqlens_q, cu_seqlens_k, *numbers, name)
        return found
    q, k, v = cast(q, k, v)
    return call(q, k, v, cu_seqlens_q, cu_seqlens_k, *numbers, config, validate=validate)
