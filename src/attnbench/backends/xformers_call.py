"""How xFormers is called with its kernel pinned.

By default ``memory_efficient_attention`` picks a kernel, often one of torch's own; pinned, it runs
one or refuses, and its reasons are queried before the first call.  Its masks are objects, its
layout is [B, S, H, D], packed [1, T, H, D] with a block-diagonal mask, and grouped heads are a fifth
dimension [B, S, G, H/G, D] over which K and V are expanded without a copy.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch
from attnbench.backends.dense import DenseBackend
from attnbench.backends.differentiable import Operands
from attnbench.backends.mask import Mask
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


class XformersBackend(DenseBackend):
    """One pinned pair of forward and backward operators."""

    install = "pip install xformers==0.0.35"
    module = "xformers.ops.fmha"
    distribution = "xformers"

    @abstractmethod
    def operators(self, fmha: Any) -> tuple[Any, Any]:
        """Return the forward and the backward operator, from xformers.ops.fmha."""

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use tensors in the workload's own layout; xFormers' views of them are free.

        Raises:
            Unsupported: the operator refuses; with xFormers' own reasons.
        """
        fmha = importlib.import_module("xformers.ops.fmha")
        forward, backward = self.operators(fmha)
        operands = Operands(case, inputs)
        bias = attention_bias(fmha.attn_bias, case, operands.q)

        def view(x: Tensor) -> Tensor:
            x = x[None] if case.packed else x
            if case.nheads == case.nheads_kv:
                return x
            x = x.unflatten(2, (case.nheads_kv, -1))
            return x.expand(-1, -1, -1, case.group_size, -1)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = fmha.memory_efficient_attention(
                view(q), view(k), view(v), bias, scale=case.scale, op=(forward, backward)
            )
            return out.reshape(*q.shape[:-1], v.shape[-1])

        asked = fmha.Inputs(view(operands.q), view(operands.k), view(operands.v), bias, scale=case.scale)
        reasons = [
            *forward.not_supported_reasons(asked),
            *(backward.not_supported_reasons(asked) if case.has_backward else ()),
        ]
        if reasons:
            raise Unsupported(
                refusal(
                    self.name,
                    "case",
                    case.id,
                    f"is refused by xFormers: {'; '.join(reasons)}",
                    "what xFormers says this kernel takes",
                )
            )
        yield operands.launch(attend)


def attention_bias(masks: Any, case: AttentionCase, q: Tensor) -> Any:
    """Return the mask as an object of xformers.ops.fmha.attn_bias; None if every key is visible."""
    mask = Mask.of(case)
    if case.packed:
        queries, keys = zip(*case.sequences, strict=True)
        blocks = masks.BlockDiagonalMask.from_seqlens(queries, keys, device=q.device)
        return blocks.make_causal_from_bottomright() if mask.causal else blocks
    if mask.window:
        # Both bounds must be numbers: the number of keys is no bound.
        return masks.LocalAttentionFromBottomRightMask(
            window_left=case.seqlen_k if mask.left == -1 else mask.left,
            window_right=case.seqlen if mask.right == -1 else mask.right,
        )
    return masks.LowerTriangularFromBottomRightMask() if mask.causal else None
