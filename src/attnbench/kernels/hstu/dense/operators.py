"""Dense HSTU attention as operators of PyTorch: `attnbench::hstu_forward` and `attnbench::hstu_backward`.

Arguments after the tensors are those of `hstu_attention`; configurations are the tuned defaults.
"""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

from attnbench.kernels.hstu.dense.calls import call_of, problem_of
from attnbench.kernels.hstu.dense.portable.forward import hstu_dense_forward
from attnbench.kernels.hstu.dense.problem import check_device
from attnbench.kernels.shared.kept import Results
from attnbench.kernels.shared.operators import Operator

TENSORS = "Tensor q, Tensor k, Tensor v"
NUMBERS = (
    "Tensor offsets, Tensor? offsets_q, Tensor? num_targets, SymInt max_seqlen, SymInt? max_seqlen_q, float? alpha, "
    "SymInt? scaling_seqlen, bool causal, SymInt contextual_len, SymInt? max_attn_len, bool deterministic"
)
COUNT = len(NUMBERS.split(","))


def run_forward(q: Tensor, k: Tensor, v: Tensor, *numbers: Any) -> Tensor | None:
    """`out`."""
    (out,) = call_of(q, k, v, *numbers).forward(q, k, v, *numbers[:3])
    return out


def fake_forward(q: Tensor, k: Tensor, v: Tensor, *numbers: Any) -> Tensor:
    """Check the arguments while a caller is traced; a result without values.

    Raises:
        ValueError: as `hstu_attention` says, but for what hangs on addresses.
    """
    problem_of(q, k, v, *numbers[:-1])
    check_device(q, compiled=isinstance(hstu_dense_forward, triton.JITFunction))
    return q.new_empty((q.shape[0], q.shape[1], v.shape[2]))


def run_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *numbers: Any) -> Results:
    """`dq`, `dk` and `dv`."""
    return call_of(q, k, v, *numbers).gradients(dout, q, k, v, *numbers[:3])


def fake_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *numbers: Any) -> Results:
    """Results without values."""
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save for the backward."""
    ctx.save_for_backward(*inputs[:6])
    ctx.numbers = inputs[6:]


def gradients(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
    """Of the forward's arguments."""
    found: tuple[Any, ...] = BACKWARD(dout, *ctx.saved_tensors, *ctx.numbers)
    return *found, *(None,) * COUNT


BACKWARD = Operator(
    f"hstu_backward(Tensor dout, {TENSORS}, {NUMBERS}) -> (Tensor, Tensor, Tensor)", run_backward, fake_backward
)
FORWARD = Operator(
    f"hstu_forward({TENSORS}, {NUMBERS}) -> Tensor", run_forward, fake_forward, setup=save, backward=gradients, casts=3
)
