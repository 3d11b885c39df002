"""NVIDIA's older HSTU attention: `hstu_attn.hstu_attn_varlen_func` of recsys-examples' corelib/hstu, superseded by the
package of `compat.hstu`.
"""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.compat.arguments import only
from attnbench.kernels.compat.hstu import PAGES, WHO, attend


def hstu_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_contexts: int | Tensor | None = None,
    num_targets: Tensor | None = None,
    target_group_size: int = 1,
    window_size: tuple[int, int] = (-1, -1),
    alpha: float = 1.0,
    rab: Tensor | None = None,
    has_drab: bool = False,
    kv_cache: Tensor | None = None,
    page_offsets: Tensor | None = None,
    page_ids: Tensor | None = None,
    last_page_lens: Tensor | None = None,
    cu_seqlens_t: Tensor | None = None,
    func: Tensor | None = None,
    scaling_seqlen: int = -1,
) -> Tensor:
    """SiLU attention of jagged sequences; arguments mean what they do in `compat.hstu`.

    Args:
        q: [Tq, H, D].
        k: [Tk, H, D].
        v: [Tk, H, Dv].
        cu_seqlens_q: int [B + 1].
        cu_seqlens_k: int [B + 1].
        max_seqlen_q: at least the most queries of a sequence.
        max_seqlen_k: at least the most keys of a sequence.
        num_contexts: None, or one number for all sequences.
        num_targets: int [B], or None.
        target_group_size: 1 alone.
        window_size: (-1, -1), (-1, 0), (w, 0) or (w, w).
        alpha: factor of the scores.
        rab: None alone.
        has_drab: False alone.
        kv_cache: None alone.
        page_offsets: None alone.
        page_ids: None alone.
        last_page_lens: None alone.
        cu_seqlens_t: None alone.
        func: None alone.
        scaling_seqlen: what outputs are divided by; -1: max_seqlen_q.

    Returns:
        [Tq, H, Dv], contiguous.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    only(WHO, "kv_cache", kv_cache, None, PAGES)
    only(WHO, "page_offsets", page_offsets, None, PAGES)
    only(WHO, "page_ids", page_ids, None, PAGES)
    only(WHO, "last_page_lens", last_page_lens, None, PAGES)
    only(WHO, "cu_seqlens_t", cu_seqlens_t, None, PAGES)
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
