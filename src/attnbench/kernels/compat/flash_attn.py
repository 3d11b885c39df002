"""FlashAttention 2's functions (the package flash-attn), signatures of version 2.8.4.

Differences: v may have other dims than q and k; lse of `return_attn_probs` has no gradient, as there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.kernels.compat.arguments import flag, in_rows, only, refusal, whole, window
from attnbench.kernels.flash.api import flash_attention

_Probs = tuple[Tensor, Tensor, Tensor]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | _Probs:
    """Attend [B, S, H, D] tensors; `flash_attention` says more.

    Args:
        q: [B, Sq, H, D].
        k: [B, Sk, G, D].
        v: [B, Sk, G, Dv].
        dropout_p: 0.0 alone.
        softmax_scale: of the scores; None: 1 / sqrt(D).
        causal: aligned to the bottom right.
        window_size: keys to the left and right of a query's own position, -1 unbounded.
        softcap: 0.0 alone.
        alibi_slopes: None alone.
        deterministic: of the backward.
        return_attn_probs: lse as well, and an empty tensor, which is what there is without dropout.

    Returns:
        out; with return_attn_probs out, lse [B, H, Sq] (∞ for a query without keys) and an empty tensor.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    _check("flash_attn_func", dropout_p, softcap, alibi_slopes, return_attn_probs)
    out, lse = flash_attention(
        in_rows(q),
        in_rows(k),
        in_rows(v),
        causal=flag(causal),
        window=window(window_size),
        scale=softmax_scale,
        deterministic=flag(deterministic),
    )
    return _with_probs(out, lse) if return_attn_probs else out


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor | _Probs:
    """Attend packed [T, H, D] tensors; arguments as of `flash_attn_func`, and

    Args:
        q: [Tq, H, D].
        k: [Tk, G, D].
        v: [Tk, G, Dv].
        cu_seqlens_q: int32 [B + 1].
        cu_seqlens_k: int32 [B + 1].
        max_seqlen_q: at least the most queries of a sequence.
        max_seqlen_k: at least the most keys of a sequence.
        dropout_p: 0.0 alone.
        softmax_scale: of the scores; None: 1 / sqrt(D).
        causal: aligned to the bottom right.
        window_size: keys to the left and right of a query's own position, -1 unbounded.
        softcap: 0.0 alone.
        alibi_slopes: None alone.
        deterministic: of the backward.
        return_attn_probs: lse as well, and an empty tensor.
        block_table: None alone: no pages.

    Returns:
        out; with return_attn_probs out, lse [H, Tq] (∞ for a query without keys) and an empty tensor.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    who = "flash_attn_varlen_func"
    _check(who, dropout_p, softcap, alibi_slopes, return_attn_probs)
    only(who, "block_table", block_table, None)
    out, lse = flash_attention(
        in_rows(q),
        in_rows(k),
        in_rows(v),
        causal=flag(causal),
        window=window(window_size),
        scale=softmax_scale,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=whole(max_seqlen_q),
        max_seqlen_k=whole(max_seqlen_k),
        deterministic=flag(deterministic),
    )
    return _with_probs(out, lse[0]) if return_attn_probs else out


def _check(who: str, dropout_p: object, softcap: object, alibi_slopes: object, return_attn_probs: object) -> None:
    only(who, "dropout_p", dropout_p, 0.0)
    only(who, "softcap", softcap, 0.0)
    only(who, "alibi_slopes", alibi_slopes, None)
    if type(flag(return_attn_probs)) is not bool:
        raise refusal(who, "return_attn_probs", return_attn_probs, "True or False")


def _with_probs(out: Tensor, lse: Tensor) -> _Probs:
    return out, lse.masked_fill(lse == -torch.inf, torch.inf), out.detach().new_empty(0)
