"""Dense HSTU attention as operators of PyTorch: `attnbench::hstu_forward` and `attnbench::hstu_backward`.

Arguments after the tensors are those of `hstu_attention`; configurations are the tuned defaults.
"""

from __future__ import annotations

from operator import mul
from typing import Any

import triton
from torch import Tensor

from attnbench.kernels.hstu.dense.calls import call_of, problem_of
from attnbench.kernels.hstu.dense.portable.forward import hstu_dense_forward
from attnbench.kernels.hstu.dense.problem import check_device
from attnbench.kernels.shared.flops import backward_flops, forward_flops, packed_pairs
from attnbench.kernels.shared.kept import Results
from attnbench.kernels.shared.operators import Operator, no_second, save_nothing, where_known

TENSORS = "Tensor q, Tensor k, Tensor v"
SEQUENCES = "Tensor offsets, Tensor? offsets_q, Tensor? num_targets"
NUMBERS = (
    "SymInt max_seqlen, SymInt? max_seqlen_q, float? alpha, SymInt? scaling_seqlen, bool causal, "
    "SymInt contextual_len, SymInt? max_attn_len, bool deterministic"
)
GIVEN, COUNT = f"{TENSORS}, {SEQUENCES}", len(f"{SEQUENCES}, {NUMBERS}".split(","))


def run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    offsets_q: Tensor | None,
    num_targets: Tensor | None,
    *numbers: Any,
) -> Tensor | None:
    """Compute `out`."""
    given = q, k, v, offsets, offsets_q, num_targets
    (out,) = call_of(*given, *numbers).forward(*given)
    return out


def fake_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    offsets_q: Tensor | None,
    num_targets: Tensor | None,
    max_seqlen: int,
    max_seqlen_q: int | None,
    alpha: float | None,
    scaling_seqlen: int | None,
    causal: bool,
    contextual_len: int,
    max_attn_len: int | None,
    deterministic: bool,
) -> Tensor:
    """Check the arguments during tracing; the result has no values.

    Raises:
        ValueError: as `hstu_attention`, except for checks of addresses.
    """
    with where_known():
        problem_of(
            q=q,
            k=k,
            v=v,
            offsets=offsets,
            offsets_q=offsets_q,
            num_targets=num_targets,
            max_seqlen=max_seqlen,
            max_seqlen_q=max_seqlen_q,
            alpha=alpha,
            scaling_seqlen=scaling_seqlen,
            causal=causal,
            contextual_len=contextual_len,
            max_attn_len=max_attn_len,
        )
        check_device(q, compiled=isinstance(hstu_dense_forward, triton.JITFunction) and not q.is_meta)
    return q.new_empty((q.shape[0], q.shape[1], v.shape[2]))


def run_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    offsets_q: Tensor | None,
    num_targets: Tensor | None,
    *numbers: Any,
) -> Results:
    """Compute `dq`, `dk` and `dv`."""
    given = q, k, v, offsets, offsets_q, num_targets
    return call_of(*given, *numbers).gradients(dout, *given)


def fake_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Results:
    """Gradients without values."""
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def pairs_of(offsets: Tensor, offsets_q: Tensor | None, _targets: Any, max_seqlen: int, max_seqlen_q: Any) -> int:
    """(query, key) pairs of a head, over all sequences."""
    return packed_pairs(mul, offsets_q, offsets, max_seqlen_q, max_seqlen)


def forward_count(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> int:
    """FLOPs of the forward."""
    return forward_flops(q, v, pairs_of(*rest[:5]))


def backward_count(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> int:
    """FLOPs of the backward."""
    return backward_flops(q, v, pairs_of(*rest[:5]))


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save tensors and arguments for the backward."""
    q, k, v, offsets, offsets_q, num_targets, *numbers = inputs
    ctx.save_for_backward(q, k, v, offsets, offsets_q, num_targets)
    ctx.numbers = numbers


def gradients(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
    """Gradients of the forward's arguments."""
    found: tuple[Any, ...] = BACKWARD(dout, *ctx.saved_tensors, *ctx.numbers)
    return *found, *(None,) * COUNT


BACKWARD = Operator(
    f"hstu_backward(Tensor dout, {GIVEN}, {NUMBERS}) -> (Tensor, Tensor, Tensor)",
    run_backward,
    fake_backward,
    setup=save_nothing,
    backward=no_second,
    flops=backward_count,
)
FORWARD = Operator(
    f"hstu_forward({GIVEN}, {NUMBERS}) -> Tensor",
    run_forward,
    fake_forward,
    setup=save,
    backward=gradients,
    flops=forward_count,
    casts=3,
)
