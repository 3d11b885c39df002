"""NVIDIA's HSTU attention: `hstu.hstu_attn_varlen_func`, the package fbgemm-gpu-hstu, as recsys-examples calls it.

`attend` is what it has in common with the older package, hstu_attn.
"""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.compat.arguments import bound, only, refusal, whole, window
from attnbench.kernels.hstu.dense.api import hstu_attention

WHO = "hstu_attn_varlen_func"
PAGES = "hstu_paged_attention supports pages, with another table format"


def hstu_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    seqused_q: Tensor | None,
    seqused_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scaling_seqlen: int,
    num_contexts: int | Tensor | None,
    num_targets: Tensor | None,
    target_group_size: int = 1,
    window_size: tuple[int, int] = (-1, -1),
    alpha: float = 1.0,
    rab: Tensor | None = None,
    has_drab: bool = False,
    kv_cache: Tensor | None = None,
    page_offsets: Tensor | None = None,
    page_ids: Tensor | None = None,
    last_page_lens: Tensor | None = None,
    func: Tensor | None = None,
    quant_mode: int | None = -1,
) -> Tensor:
    """SiLU attention of jagged sequences; `hstu_attention` says more.

    Args:
        q: [Tq, H, D].
        k: [Tk, H, D].
        v: [Tk, H, Dv].
        cu_seqlens_q: int [B + 1]; the queries are the last rows of each sequence.
        cu_seqlens_k: int [B + 1]; no sequence has fewer keys than queries.
        seqused_q: None alone.
        seqused_k: None alone.
        max_seqlen_q: at least the most queries of a sequence.
        max_seqlen_k: at least the most keys of a sequence.
        scaling_seqlen: what outputs are divided by; -1: max_seqlen_q.
        num_contexts: None, or one number for all sequences; not a tensor, whose numbers may differ.
        num_targets: int [B], or None.
        target_group_size: 1 alone.
        window_size: (-1, -1) all, (-1, 0) causal, (w, 0) causal and w rows back, (w, w) w rows back and forth.
        alpha: factor of the scores.
        rab: None alone.
        has_drab: False alone.
        kv_cache: None alone.
        page_offsets: None alone.
        page_ids: None alone.
        last_page_lens: None alone.
        func: None alone.
        quant_mode: -1 alone: 16 bits.

    Returns:
        [Tq, H, Dv], contiguous.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    only(WHO, "seqused_q", seqused_q, None)
    only(WHO, "seqused_k", seqused_k, None)
    only(WHO, "kv_cache", kv_cache, None, PAGES)
    only(WHO, "page_offsets", page_offsets, None, PAGES)
    only(WHO, "page_ids", page_ids, None, PAGES)
    only(WHO, "last_page_lens", last_page_lens, None, PAGES)
    only(WHO, "quant_mode", quant_mode, -1)
    return attend(
        q=q,
        k=k,
        v=v,
        offsets=(cu_seqlens_q, cu_seqlens_k),
        longest=(max_seqlen_q, max_seqlen_k),
        scaling_seqlen=scaling_seqlen,
        num_contexts=num_contexts,
        num_targets=num_targets,
        target_group_size=target_group_size,
        window_size=window_size,
        alpha=alpha,
        rab=rab,
        has_drab=has_drab,
        func=func,
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    scaling_seqlen: int,
    num_contexts: int | Tensor | None,
    num_targets: Tensor | None,
    target_group_size: int,
    window_size: tuple[int, int],
    alpha: float,
    rab: Tensor | None,
    has_drab: bool,
    func: Tensor | None,
) -> Tensor:
    """What both of NVIDIA's packages have in common; pairs are of queries and keys.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    only(WHO, "rab", rab, None)
    only(WHO, "has_drab", has_drab, False)
    only(WHO, "func", func, None)
    only(WHO, "target_group_size", target_group_size, 1)
    if isinstance(num_contexts, Tensor):
        raise refusal(WHO, "num_contexts", num_contexts, "None, or one number for all sequences")
    window_size, scaling_seqlen, num_contexts = window(window_size), whole(scaling_seqlen), whole(num_contexts)
    causal, reach = _mask(window_size)
    if tuple(window_size) != (-1, 0) and not (num_contexts is None and num_targets is None):
        raise refusal(WHO, "window_size", window_size, "(-1, 0) with contexts or targets")
    queries, keys = offsets
    longest_q, longest_k = bound(WHO, "max_seqlen_q", longest[0]), bound(WHO, "max_seqlen_k", longest[1])
    if longest_q > longest_k:
        raise refusal(WHO, "max_seqlen_q", longest_q, f"at most max_seqlen_k={longest_k}")
    if not isinstance(queries, Tensor):
        raise refusal(WHO, "cu_seqlens_q", queries, "int [B + 1]")
    # Without reading them on the host, only one tensor for both is known to hold the same sequences.
    same = queries is keys
    return hstu_attention(
        q,
        k,
        v,
        keys,
        longest_k,
        offsets_q=None if same else queries,
        max_seqlen_q=None if same else longest_q,
        num_targets=num_targets,
        alpha=alpha,
        scaling_seqlen=longest_q if scaling_seqlen == -1 else scaling_seqlen,
        causal=causal,
        contextual_len=num_contexts or 0,
        max_attn_len=reach,
    )


def _mask(window_size: tuple[int, int]) -> tuple[bool, int | None]:
    left, right = window_size
    if left < 0 and right <= 0:
        return right == 0, None
    if left > 0 and right in (0, left):
        return right == 0, left
    raise refusal(WHO, "window_size", window_size, "(-1, -1), (-1, 0), (w, 0) or (w, w) with w from 1")
