"""Flash attention as operators of PyTorch: `attnbench::flash_forward` and `attnbench::flash_backward`.

Arguments after the tensors are those of `flash_attention`, configurations by name.
"""

from __future__ import annotations

from operator import mul
from typing import Any

import torch
import triton
from torch import Tensor

from attnbench.kernels.flash.calls import call_of, given_backward, given_forward
from attnbench.kernels.flash.portable.forward import flash_forward
from attnbench.kernels.flash.problem import check_device, lse_extents, problem_of
from attnbench.kernels.shared.flops import backward_flops, forward_flops, packed_pairs
from attnbench.kernels.shared.kept import Results
from attnbench.kernels.shared.operators import Operator, no_second, save_nothing, where_known

TENSORS = "Tensor q, Tensor k, Tensor v"
NUMBERS = (
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt? max_seqlen_q, SymInt? max_seqlen_k, bool causal, "
    "SymInt[]? window, float? scale, bool deterministic, str? forward, str? backward"
)
COUNT = len(NUMBERS.split(","))


def run_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None, *rest: Any
) -> Results:
    """Compute `out` and `lse`."""
    return call_of(q, k, v, cu_seqlens_q, cu_seqlens_k, *rest).forward(q, k, v, cu_seqlens_q, cu_seqlens_k)


def fake_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    causal: bool,
    window: Any,
    scale: float | None,
    deterministic: bool,
    forward: str | None,
    backward: str | None,
) -> Results:
    """Check the arguments during tracing; the results have no values.

    Raises:
        ValueError: as `flash_attention`, except for checks of addresses.
    """
    with where_known():
        problem = problem_of(
            q,
            k,
            v,
            causal=causal,
            window=window,
            scale=scale,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
        )
        check_device(q, compiled=isinstance(flash_forward, triton.JITFunction) and not q.is_meta)
        if forward is not None:
            given_forward(forward, q, v, problem)
        if backward is not None:
            given_backward(backward, q, v, deterministic)
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(
        lse_extents(q, packed=cu_seqlens_q is not None), dtype=torch.float32
    )


def run_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    *rest: Any,
) -> Results:
    """Compute `dq`, `dk` and `dv`."""
    call = call_of(q, k, v, cu_seqlens_q, cu_seqlens_k, *rest)
    return call.gradients(
        dout=dout, q=q, k=k, v=v, out=out, lse=lse, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k
    )


def fake_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *numbers: Any) -> Results:
    """Gradients without values."""
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def pairs_of(q: Tensor, k: Tensor, cu_seqlens_q: Tensor | None, *rest: Any) -> int:
    """(query, key) pairs of a head, over all sequences."""
    if cu_seqlens_q is None:
        return q.shape[0] * q.shape[1] * k.shape[1]
    return packed_pairs(mul, cu_seqlens_q, *rest)


def forward_count(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> int:
    """FLOPs of the forward."""
    return forward_flops(q, v, pairs_of(q, k, *rest[:4]))


def backward_count(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> int:
    """FLOPs of the backward."""
    return backward_flops(q, v, pairs_of(q, k, *rest[:4]))


def save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    """Save tensors and arguments for the backward."""
    q, k, v, cu_seqlens_q, cu_seqlens_k, *ctx.numbers = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k)
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)


def gradients(ctx: Any, dout: Tensor | None, _dlse: Tensor | None) -> tuple[Any, ...]:
    """Gradients of the forward's arguments."""
    if dout is None:  # the output's gradient was not requested
        return (None,) * (3 + COUNT)
    found: tuple[Any, ...] = BACKWARD(dout, *ctx.saved_tensors, *ctx.numbers)
    return *found, *(None,) * COUNT


BACKWARD = Operator(
    f"flash_backward(Tensor dout, {TENSORS}, Tensor out, Tensor lse, {NUMBERS}) -> (Tensor, Tensor, Tensor)",
    run_backward,
    fake_backward,
    setup=save_nothing,
    backward=no_second,
    flops=backward_count,
)
FORWARD = Operator(
    f"flash_forward({TENSORS}, {NUMBERS}) -> (Tensor, Tensor)",
    run_forward,
    fake_forward,
    setup=save,
    backward=gradients,
    flops=forward_count,
    casts=3,
)
