"""FlashAttention 3's functions (the package flash-attn-3, imported as flash_attn_interface), signatures of version 3.0.0.

They differ from FlashAttention 2's in order and names of arguments, and in what `return_attn_probs` adds: lse alone,
with -∞ for a query without keys.
"""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.compat.arguments import flag, in_rows, only, refusal, whole, window
from attnbench.kernels.flash.api import flash_attention


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend [B, S, H, D] tensors; `flash_attention` says more.

    Args:
        q: [B, Sq, H, D].
        k: [B, Sk, G, D].
        v: [B, Sk, G, Dv].
        softmax_scale: of the scores; None: 1 / sqrt(D).
        causal: aligned to the bottom right.
        qv: None alone.
        q_descale: None alone: no 8-bit inputs.
        k_descale: the same.
        v_descale: the same.
        window_size: keys to the left and right of a query's own position, -1 unbounded.
        attention_chunk: 0 alone.
        softcap: 0.0 alone.
        num_splits: 0 or 1; how keys are divided among CTAs is `flash_attention`'s own choice.
        pack_gqa: None alone.
        deterministic: of the backward.
        sm_margin: 0 alone.
        return_attn_probs: lse as well.

    Returns:
        out; with return_attn_probs out and lse [B, H, Sq].

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    who = "flash_attn_func"
    _absent(who, qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, pack_gqa=pack_gqa)
    _numbers(who, attention_chunk, softcap, num_splits, sm_margin, return_attn_probs)
    out, lse = flash_attention(
        in_rows(q),
        in_rows(k),
        in_rows(v),
        causal=flag(causal),
        window=window(window_size),
        scale=softmax_scale,
        deterministic=flag(deterministic),
    )
    return (out, lse) if return_attn_probs else out


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend packed [T, H, D] tensors.

    Args:
        q: [Tq, H, D].
        k: [Tk, G, D].
        v: [Tk, G, Dv].
        cu_seqlens_q: int32 [B + 1].
        cu_seqlens_k: int32 [B + 1].
        max_seqlen_q: at least the most queries of a sequence.
        max_seqlen_k: at least the most keys of a sequence.
        seqused_q: None alone: all rows between two offsets are used.
        seqused_k: the same.
        softmax_scale: as of `flash_attn_func`, like all that follow.
        causal: aligned to the bottom right.
        qv: None alone.
        q_descale: None alone.
        k_descale: None alone.
        v_descale: None alone.
        window_size: keys to the left and right of a query's own position, -1 unbounded.
        attention_chunk: 0 alone.
        softcap: 0.0 alone.
        num_splits: 0 or 1.
        pack_gqa: None alone.
        deterministic: of the backward.
        sm_margin: 0 alone.
        return_attn_probs: lse as well.

    Returns:
        out; with return_attn_probs out and lse [H, Tq].

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    who = "flash_attn_varlen_func"
    _absent(who, seqused_q=seqused_q, seqused_k=seqused_k, qv=qv, pack_gqa=pack_gqa)
    _absent(who, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    _numbers(who, attention_chunk, softcap, num_splits, sm_margin, return_attn_probs)
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
    return (out, lse[0]) if return_attn_probs else out


def _absent(who: str, **given: object) -> None:
    for name, value in given.items():
        only(who, name, value, None)


def _numbers(
    who: str, attention_chunk: object, softcap: object, num_splits: object, sm_margin: object, return_attn_probs: object
) -> None:
    only(who, "attention_chunk", attention_chunk, 0)
    only(who, "softcap", softcap, 0.0)
    only(who, "sm_margin", sm_margin, 0)
    if type(flag(return_attn_probs)) is not bool:
        raise refusal(who, "return_attn_probs", return_attn_probs, "True or False")
    if num_splits not in (0, 1):
        raise refusal(who, "num_splits", num_splits, "0 or 1; flash_attention chooses how keys are divided")
