"""Quantised attention as an operator of PyTorch, `attnbench::flash_quant_forward`; without gradients.

After the tensors come the other arguments of `flash_quant_attention`, the configuration by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.kernels.flash.operators import forward_count
from attnbench.kernels.flash.problem import lse_extents
from attnbench.kernels.flash.quant.calls import call, check_device, config_for
from attnbench.kernels.flash.quant.problem import quant_problem_of
from attnbench.kernels.shared.operators import Operator, no_gradients, where_known, without_gradients


def run_forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`out` and `lse`."""
    return call(*arguments)


def fake_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    causal: bool,
    scale: float | None,
    config: str | None,
) -> tuple[Tensor, Tensor]:
    """Check the arguments during tracing; the results have no values.

    Raises:
        ValueError: as `flash_quant_attention`.
    """
    with where_known():
        quant_problem_of(
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
        config_for(config, q)
        if not q.is_meta:
            check_device(q)
    return q.new_empty(q.shape), q.new_empty(lse_extents(q, packed=cu_seqlens_q is not None), dtype=torch.float32)


FORWARD = Operator(
    "flash_quant_forward(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "SymInt? max_seqlen_q, SymInt? max_seqlen_k, bool causal, float? scale, str? config) -> (Tensor, Tensor)",
    run_forward,
    fake_forward,
    setup=without_gradients,
    backward=no_gradients,
    flops=forward_count,
    casts=3,
)
