"""``eager``: textbook attention in PyTorch, step by step (matmul, scale, mask, softmax, matmul).

It stores all scores, [B, H, Sq, Sk].  Fused kernels are compared with it, and it runs out of memory
first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch
from attnbench.backends.dense import ALL_DTYPES, DenseBackend, Limits
from attnbench.backends.differentiable import differentiable, rows_first
from attnbench.backends.mask import Mask

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.backends.differentiable import Attention
    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


class Eager(DenseBackend):
    """Unfused attention; keys and values are repeated for the query heads of their group."""

    name = "eager"
    title = "PyTorch standard"
    tested = "NVIDIA H200, torch 2.11"
    install = "part of torch"
    devices = ("cpu", "cuda")
    limits = Limits(
        dtypes=ALL_DTYPES, headdim_v=True, gqa=True, window=True, bottom_right=True, empty_rows=True, backward=True
    )

    def attend(self, case: AttentionCase, device: device) -> Attention:
        """See `Backend.attend`."""
        return rows_first(self._function(case, device))

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use tensors [B, H, S, D]; the mask is made once."""
        yield differentiable(self._function(case, inputs.q.device), case, inputs, heads_first=True)

    @staticmethod
    def _function(case: AttentionCase, device: device) -> Attention:
        """Attention on tensors [B, H, S, D]."""
        import torch

        mask = Mask.of(case)
        visible = mask.visible(device)
        hidden = None if visible is None else visible.logical_not_()
        scale = case.scale
        repeats = case.group_size

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if repeats > 1:
                k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
            scores = (q @ k.transpose(-2, -1)) * scale
            if hidden is not None:
                scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
            weights = scores.softmax(dim=-1)
            if hidden is not None and mask.empty_rows:
                weights = weights.masked_fill(hidden, 0.0)
            return weights @ v

        return attend
