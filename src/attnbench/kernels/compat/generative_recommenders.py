"""Meta's HSTU attention: `hstu_mha` of generative_recommenders.ops.hstu_attention, in their order of arguments."""

from __future__ import annotations

from enum import Enum

from torch import Tensor

from attnbench.kernels.compat.arguments import bound, in_rows, only, refusal, whole
from attnbench.kernels.hstu.dense.api import hstu_attention

WHO = "hstu_mha"


def hstu_mha(
    max_seq_len: int,
    alpha: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq_offsets: Tensor,
    causal: bool = True,
    dropout_pr: float = 0.0,
    training: bool = True,
    num_targets: Tensor | None = None,
    attn_scale: Tensor | None = None,
    max_attn_len: int = 0,
    contextual_seq_len: int = 0,
    min_full_attn_seq_len: int = 0,
    sort_by_length: bool = False,
    kernel: Enum | None = None,
    enable_tma: bool = False,
) -> Tensor:
    """SiLU attention of jagged sequences; `hstu_attention` says more.

    Args:
        max_seq_len: at least the most rows of a sequence; outputs are divided by it.
        alpha: factor of the scores.
        q: [T, H, D].
        k: [T, H, D].
        v: [T, H, Dv].
        seq_offsets: int [B + 1].
        causal: True alone, as there.
        dropout_pr: 0.0 alone where training.
        training: whether dropout applies; it has no other effect.
        num_targets: int [B], or None.
        attn_scale: None alone.
        max_attn_len: how many rows back a row sees; 0: all.
        contextual_seq_len: rows at the front of each sequence that see all of its history.
        min_full_attn_seq_len: 0 alone.
        sort_by_length: True or False: the order of the work, which is ours in both cases.
        kernel: None, or a HammerKernel, which selects a kernel in their package and has no effect here.
        enable_tma: True or False: how theirs would have loaded.

    Returns:
        [T, H, Dv], contiguous.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    only(WHO, "causal", causal, True)
    if training:
        only(WHO, "dropout_pr", dropout_pr, 0.0)
    only(WHO, "attn_scale", attn_scale, None)
    only(WHO, "min_full_attn_seq_len", min_full_attn_seq_len, 0)
    for name, value in (("sort_by_length", sort_by_length), ("enable_tma", enable_tma)):
        if value not in (True, False):
            raise refusal(WHO, name, value, "True or False")
    if kernel is not None and type(kernel).__name__ != "HammerKernel":
        raise refusal(WHO, "kernel", kernel, "None, or a HammerKernel, which ours replaces")
    return hstu_attention(
        in_rows(q),
        in_rows(k),
        in_rows(v),
        seq_offsets,
        bound(WHO, "max_seq_len", max_seq_len),
        num_targets=num_targets,
        alpha=alpha,
        contextual_len=whole(contextual_seq_len),
        max_attn_len=whole(max_attn_len) or None,
    )
