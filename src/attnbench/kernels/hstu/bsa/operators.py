"""Block-sparse HSTU attention as operators of PyTorch: `attnbench::hstu_bsa_forward` and `attnbench::hstu_bsa_backward`.

Arguments are the tensors of `inputs.BsaTensors`, then `calls.Numbers`; the configuration is the default.  The forward
also returns what the backward reads again (`Saved`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnbench.kernels.hstu.bsa.calls import Numbers, call_of, checked
from attnbench.kernels.hstu.bsa.inputs import BsaTensors, problem_of
from attnbench.kernels.hstu.bsa.plan import BsaConfig, saved_shapes
from attnbench.kernels.shared.flops import backward_flops, forward_flops, packed_pairs
from attnbench.kernels.shared.kept import Results
from attnbench.kernels.shared.operators import Operator, no_second, save_nothing, where_known

TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? gates, Tensor offsets, Tensor? offsets_q, Tensor? num_targets"
NUMBERS = (
    "SymInt max_seqlen, int block_size, int block_counts, SymInt? local_window, str selection, bool pairs, "
    "SymInt? max_seqlen_q, float? alpha, SymInt? scaling_seqlen"
)


class Saved(NamedTuple):
    """What the backward needs (`plan.saved_shapes`): means of blocks, and lists; empty where a call has none."""

    means_k: Tensor
    means_v: Tensor
    entries: Tensor
    starts: Tensor


SAVED = ", ".join(f"Tensor {name}" for name in Saved._fields)
TENSOR_COUNT, NUMBER_COUNT = len(BsaTensors._fields), len(Numbers._fields)


def split_arguments(arguments: tuple[Any, ...]) -> tuple[BsaTensors, Numbers]:
    """Arguments of the forward by name."""
    return BsaTensors(*arguments[:TENSOR_COUNT]), Numbers(*arguments[TENSOR_COUNT:])


def run_forward(*arguments: Any) -> Results:
    """Compute `out`, `blocks`, and what is saved."""
    tensors, numbers = split_arguments(arguments)
    out, blocks, *saved = call_of(tensors, numbers).forward(*tensors)
    missing = (tensors.q.new_empty(0, dtype=torch.int32) for _ in range(len(Saved._fields) - len(saved)))
    return out, blocks, *saved, *missing


def fake_forward(*arguments: Any) -> Results:
    """Check the arguments during tracing; the results have no values.

    Raises:
        ValueError: as `hstu_bsa_attention`, except for checks of addresses.
    """
    tensors, numbers = split_arguments(arguments)
    with where_known():
        checked(tensors, numbers)
    # Of what may be unknown, nothing changes a shape.
    p = problem_of(tensors, **numbers._asdict() | {"max_seqlen_q": 0, "alpha": 1.0, "scaling_seqlen": 1})
    shapes = saved_shapes(p, BsaConfig())
    new = tensors.q.new_empty
    saved = []
    for name in Saved._fields:
        shape, dtype = shapes.get(name, ((0,), torch.int32))
        saved.append(new(shape, dtype=dtype))
    blocks = new((p.queries, p.list_heads, p.block_counts), dtype=torch.int32)
    return new((p.queries, p.heads, p.linear_dim)), blocks, *saved


def run_backward(dout: Tensor, blocks: Tensor, *arguments: Any) -> Results:
    """Compute `dq`, `dk`, `dv` and `dgates`, which is empty without gates."""
    given, rest = arguments[:TENSOR_COUNT], arguments[TENSOR_COUNT:]
    tensors, numbers = split_arguments(given + rest[len(Saved._fields) :])
    saved = Saved(*rest[: len(Saved._fields)])
    lists = (saved.entries, saved.starts) if numbers.block_counts > 1 else ()
    found = call_of(tensors, numbers).gradients(dout, blocks, *tensors, saved.means_k, saved.means_v, *lists)
    dq, dk, dv, dgates = found
    return dq, dk, dv, tensors.q.new_empty(0) if dgates is None else dgates


def fake_backward(dout: Tensor, blocks: Tensor, *arguments: Any) -> Results:
    """Gradients without values."""
    tensors = BsaTensors(*arguments[:TENSOR_COUNT])
    dgates = tensors.q.new_empty(0 if tensors.gates is None else tensors.gates.shape)
    return *(x.new_empty(x.shape) for x in (tensors.q, tensors.k, tensors.v)), dgates


def pairs_of(tensors: BsaTensors, numbers: Numbers) -> int:
    """Pairs of a head: of each query with the means of all blocks, with the blocks it may select, and with its window."""
    size, window = numbers.block_size, numbers.local_window or 0
    most = size * numbers.block_counts

    def count(queries: int, keys: int) -> int:
        return queries * (keys // size + min(keys, most) + min(keys, window))

    return packed_pairs(count, tensors.offsets_q, tensors.offsets, numbers.max_seqlen_q, numbers.max_seqlen)


def forward_count(*arguments: Any) -> int:
    """FLOPs of the forward."""
    tensors, numbers = split_arguments(arguments)
    return forward_flops(tensors.q, tensors.v, pairs_of(tensors, numbers))


def backward_count(dout: Tensor, blocks: Tensor, *arguments: Any) -> int:
    """FLOPs of the backward."""
    given, rest = arguments[:TENSOR_COUNT], arguments[TENSOR_COUNT:]
    tensors, numbers = split_arguments(given + rest[len(Saved._fields) :])
    return backward_flops(tensors.q, tensors.v, pairs_of(tensors, numbers))


def save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    """Save tensors and arguments for the backward."""
    _, blocks, *saved = output
    ctx.save_for_backward(blocks, *inputs[:TENSOR_COUNT], *saved)
    ctx.mark_non_differentiable(blocks, *saved)
    ctx.numbers = inputs[TENSOR_COUNT:]
    ctx.set_materialize_grads(False)


def gradients(ctx: Any, dout: Tensor | None, *_none: Tensor | None) -> tuple[Any, ...]:
    """Gradients of the forward's arguments."""
    if dout is None:  # the output's gradient was not requested
        return (None,) * (TENSOR_COUNT + NUMBER_COUNT)
    saved = ctx.saved_tensors  # read once, as `torch.utils.checkpoint` wants
    dq, dk, dv, dgates = BACKWARD(dout, *saved, *ctx.numbers)
    tensors = BsaTensors(*saved[1 : 1 + TENSOR_COUNT])
    found = dq, dk, dv, None if tensors.gates is None else dgates
    return *found, *(None,) * (TENSOR_COUNT - len(found) + NUMBER_COUNT)


BACKWARD = Operator(
    f"hstu_bsa_backward(Tensor dout, Tensor blocks, {TENSORS}, {SAVED}, {NUMBERS}) -> (Tensor, Tensor, Tensor, Tensor)",
    run_backward,
    fake_backward,
    setup=save_nothing,
    backward=no_second,
    flops=backward_count,
)
FORWARD = Operator(
    f"hstu_bsa_forward({TENSORS}, {NUMBERS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    run_forward,
    fake_forward,
    setup=save,
    backward=gradients,
    flops=forward_count,
    casts=4,
)
