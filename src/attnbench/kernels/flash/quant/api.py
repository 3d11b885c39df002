"""Quantised softmax attention, forward: 8-bit products, 16-bit tensors in and out.

    S = c Q (K - mean K)ᵀ        P = softmax(S, hidden keys at -∞)        O = P V

Taking the mean of a head's keys from each shifts the scores of a row alike, which a softmax does not see; lse is put
right.  Q and K are rounded to int8, V and P to e4m3 (Zhang et al. 2024, arXiv:2411.10958), sums of P V to fp32 at each
tile of 128 keys.  Letters: `quant.problem`.  Takes bf16 and fp16, dims 1 to 128, which are padded to 64 or 128.

A row of Q that is not finite makes its own output NaN.  K, whose mean the head's keys share, makes that of all rows of
the head; a channel of V makes itself so.  What is under 2⁻⁶⁰ in a whole row or channel counts as 0.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from attnbench.kernels.flash.problem import Problem, lse_shape
from attnbench.kernels.flash.quant.config import QuantConfig, Shape, default_config, fault, nearest
from attnbench.kernels.flash.quant.forward import launch_quant
from attnbench.kernels.flash.quant.portable.forward import flash_quant_forward
from attnbench.kernels.flash.quant.prepare import Quantised, allocate, launch_quantise, launch_smooth
from attnbench.kernels.flash.quant.problem import WHO, check_offsets, quant_problem_of, wrong
from attnbench.kernels.shared.card import capability_of, takes_compiled

__all__ = [
    "QuantConfig",
    "Quantised",
    "allocate",
    "check_offsets",
    "config_for",
    "flash_quant_attention",
    "launch_quant",
    "launch_quantise",
    "launch_smooth",
    "lse_shape",
    "quant_problem_of",
]


def config_for(given: QuantConfig | str | None, q: Tensor) -> QuantConfig:
    """The configuration of a call: the one given, if it is valid for the shape, or the tuned default.

    Raises:
        ValueError: it cannot be read or used; the line says why, and which valid one is nearest.
    """
    capability = capability_of(q)
    if given is None:
        return default_config(Shape(dim=q.shape[-1], capability=capability or (0, 0)))
    # A name is judged as for an H200 where there is no card.
    shape = Shape(dim=q.shape[-1], capability=capability or (9, 0))
    if not isinstance(given, str | QuantConfig):
        raise wrong("config", repr(given), "is no configuration", "a QuantConfig, its name or None")
    text = given if isinstance(given, str) else given.short
    try:
        config = QuantConfig.parse(given) if isinstance(given, str) else given
        found = fault(config, shape)
        if found:
            raise ValueError(f"is not valid, {found[0]}: it {found[1]}")
    except ValueError as why:
        raise ValueError(f"{WHO}: config={text} {why}; the nearest valid one is {nearest(text, shape)}") from None
    return config


def _check_device(q: Tensor) -> None:
    if isinstance(flash_quant_forward, triton.JITFunction) and not takes_compiled(q):
        raise wrong("q.device", q.device, "has no compiled kernels", "a CUDA device")
    capability = capability_of(q)
    if capability and capability < (8, 9):
        raise wrong("q.device", f"sm_{capability[0]}{capability[1]}", "does not multiply e4m3", "sm_89 or later")


def attend(q: Tensor, k: Tensor, v: Tensor, problem: Problem, config: QuantConfig) -> tuple[Tensor, Tensor]:
    """Quantise and attend in three launches, of a problem that is checked."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(lse_shape(q, problem), dtype=torch.float32, device=q.device)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        made = allocate(q, k, problem)
        launch_smooth(k, v, made, problem)
        launch_quantise(q, k, v, made, problem)
        launch_quant(made, out, lse, problem, config)
    return out, lse


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
    """Attend in 8 bits; forward only, and no gradient passes through.

    Nothing waits for the device unless `validate` is set, so a call can be captured in a CUDA graph.

    Args:
        q: [B, Sq, H, D], or packed [Tq, H, D].
        k: [B, Sk, G, D], or packed [Tk, G, D].
        v: [B, Sk, G, D], or packed [Tk, G, D].
        causal: no key after a query's own position, which is bottom-right: the last query meets the last key.
        scale: of the scores; None: 1 / sqrt(D).
        cu_seqlens_q: int32 [B + 1] where packed: sequence b has the queries from [b] to [b + 1].
        cu_seqlens_k: the same of the keys; None: those of the queries.
        max_seqlen_q: at least the most queries of a sequence, needed where packed.
        max_seqlen_k: the same of the keys; None: max_seqlen_q.
        config: launch configuration, or its name (`quant.config`), such as "m192n128w12s4-ws" of the Hopper path; None:
            the tuned default.
        validate: look into the offsets too, and wait for the device.

    Returns:
        out, shaped as q, contiguous; and lse, fp32 [B, H, Sq] or packed [1, H, Tq], -∞ for a query that sees no key,
        whose out is 0.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.  A configuration
            of the Hopper path is refused on other cards and dims; no other runs in its place.
    """
    problem = quant_problem_of(
        q,
        k,
        v,
        causal=causal,
        scale=scale,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
    )
    if validate:
        check_offsets(problem, q, k)
    chosen = config_for(config, q)
    _check_device(q)
    return attend(q, k, v, problem, chosen)
