"""Block-sparse HSTU attention as operators of PyTorch: `attnbench::hstu_bsa_forward` and `attnbench::hstu_bsa_backward`.

Tensors are those of `hstu.bsa.inputs.INPUTS`, arguments after them those of `calls.checked`; the configuration is the
default.  The forward also gives what the backward reads again: means of blocks, and lists, empty without other blocks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.kernels.hstu.bsa.calls import call_of, checked
from attnbench.kernels.hstu.bsa.inputs import INPUTS
from attnbench.kernels.hstu.bsa.plan import BsaConfig, saved_shapes
from attnbench.kernels.shared.kept import Results
from attnbench.kernels.shared.operators import Operator

TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? gates, Tensor offsets, Tensor? offsets_q, Tensor? num_targets"
NUMBERS = (
    "SymInt max_seqlen, int block_size, int block_counts, SymInt? local_window, str selection, bool pairs, "
    "SymInt? max_seqlen_q, float? alpha, SymInt? scaling_seqlen"
)
GIVEN, COUNT = len(INPUTS), len(NUMBERS.split(","))
SAVED = ("means_k", "means_v", "entries", "starts")


def run_forward(*arguments: Any) -> Results:
    """`out`, `blocks`, and what is saved."""
    given, numbers = arguments[:GIVEN], arguments[GIVEN:]
    q, *_ = given
    out, blocks, *saved = call_of(given, *numbers).forward(*given)
    return out, blocks, *saved, *(q.new_empty(0, dtype=torch.int32) for _ in range(len(SAVED) - len(saved)))


def fake_forward(*arguments: Any) -> Results:
    """Check the arguments while a caller is traced; results without values.

    Raises:
        ValueError: as `hstu_bsa_attention` says, but for what hangs on addresses.
    """
    tensors, p = checked(arguments[:GIVEN], *arguments[GIVEN:])
    shapes = saved_shapes(p, BsaConfig())
    new = tensors.q.new_empty
    saved = [
        new(*shapes[name][:1], dtype=shapes[name][1]) if name in shapes else new(0, dtype=torch.int32) for name in SAVED
    ]
    blocks = new((p.queries, p.list_heads, p.block_counts), dtype=torch.int32)
    return new((p.queries, p.heads, p.linear_dim)), blocks, *saved


def run_backward(dout: Tensor, blocks: Tensor, *arguments: Any) -> Results:
    """`dq`, `dk`, `dv` and `dgates`, which is empty without gates."""
    given, rest = arguments[:GIVEN], arguments[GIVEN:]
    q, *_ = given
    means_k, means_v, entries, starts, *numbers = rest
    _max_seqlen, _block_size, block_counts, *_ = numbers
    lists = (entries, starts) if block_counts > 1 else ()
    dq, dk, dv, dgates = call_of(given, *numbers).gradients(dout, blocks, *given, means_k, means_v, *lists)
    return dq, dk, dv, q.new_empty(0) if dgates is None else dgates


def fake_backward(dout: Tensor, blocks: Tensor, *arguments: Any) -> Results:
    """Results without values."""
    q, k, v, gates, *_ = arguments
    return *(x.new_empty(x.shape) for x in (q, k, v)), q.new_empty(0 if gates is None else gates.shape)


def save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    """Save for the backward."""
    _, blocks, *saved = output
    ctx.save_for_backward(blocks, *inputs[:GIVEN], *saved)
    ctx.mark_non_differentiable(blocks, *saved)
    ctx.numbers = inputs[GIVEN:]
    ctx.set_materialize_grads(False)


def gradients(ctx: Any, dout: Tensor | None, *_none: Tensor | None) -> tuple[Any, ...]:
    """Of the forward's arguments."""
    if dout is None:  # nobody asked for a derivative of the output
        return (None,) * (GIVEN + COUNT)
    dq, dk, dv, dgates = BACKWARD(dout, *ctx.saved_tensors, *ctx.numbers)
    _blocks, _q, _k, _v, gates, *_ = ctx.saved_tensors
    found = dq, dk, dv, None if gates is None else dgates
    return *found, *(None,) * (GIVEN - len(found) + COUNT)


BACKWARD = Operator(
    f"hstu_bsa_backward(Tensor dout, Tensor blocks, {TENSORS}, {', '.join(f'Tensor {name}' for name in SAVED)}, {NUMBERS}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    run_backward,
    fake_backward,
)
FORWARD = Operator(
    f"hstu_bsa_forward({TENSORS}, {NUMBERS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    run_forward,
    fake_forward,
    setup=save,
    backward=gradients,
    casts=4,
)
