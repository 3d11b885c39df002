"""Block-sparse attention as operators of PyTorch: `attnbench::flash_sparse_forward` of a map, and
`attnbench::flash_sparse_listed` of the lists of one; no gradient passes through.

Arguments after the tensors are those of `flash_sparse_attention`, the configuration by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.kernels.flash.sparse.calls import call, check_device, config_for
from attnbench.kernels.flash.sparse.lists import BlockLists, ListTensors, MadeFor
from attnbench.kernels.flash.sparse.problem import check_map, sparse_problem_of
from attnbench.kernels.shared.flops import forward_flops
from attnbench.kernels.shared.operators import Operator, no_gradients, where_known, without_gradients

TENSORS = "Tensor q, Tensor k, Tensor v"
LISTS = (
    "Tensor counts, Tensor indices, Tensor? places, Tensor items, int share, int unit, int[] made_for, "
    "SymInt seqlen_q, SymInt seqlen_k, bool made_causal"
)
"""`ListTensors`, then `MadeFor`."""
NUMBERS = "int[] block, bool causal, float? scale, str? config"

Results = tuple[Tensor, Tensor]
"""`out` and `lse`."""


def split_arguments(given: tuple[Any, ...]) -> tuple[ListTensors, MadeFor, tuple[Any, ...]]:
    """Split the arguments after q, k and v: those of `LISTS`, then those of `NUMBERS`."""
    tensors = len(ListTensors._fields)
    made = tensors + len(MadeFor._fields)
    return ListTensors(*given[:tensors]), MadeFor(*given[tensors:made]), given[made:]


def lists_of(tensors: ListTensors, made: MadeFor) -> BlockLists:
    """Lists from the arguments of an operator."""
    rows, keys = made.block  # a list, not a tuple, if it comes from the dispatcher
    return BlockLists(**tensors._asdict(), **made._replace(block=(rows, keys))._asdict())


def empty_results(q: Tensor) -> Results:
    """Results without values."""
    return q.new_empty(q.shape), q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)


def fake_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_map: Tensor,
    block: Any,
    causal: bool,
    scale: float | None,
    config: str | None,
) -> Results:
    """Check the arguments during tracing; the results have no values.

    Raises:
        ValueError: as `flash_sparse_attention`, except for checks of addresses.
    """
    with where_known():
        problem = sparse_problem_of(q, k, v, block=block, causal=causal, scale=scale)
        check_map(block_map, problem, q.device)
    return _results(q, k, v, block, causal, scale, config)


def run_listed(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> Results:
    """Compute `out` and `lse` from lists, which are checked against the call."""
    tensors, made, numbers = split_arguments(given)
    return call(q, k, v, lists_of(tensors, made), *numbers)


def fake_listed(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> Results:
    """Check the arguments during tracing; the results have no values.

    Raises:
        ValueError: as `flash_sparse_attention`, except for checks of addresses and of the lists.
    """
    *_, numbers = split_arguments(given)
    return _results(q, k, v, *numbers)


def dense_count(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """FLOPs without a map, which PyTorch's counter does not read for its own block-sparse attention either."""
    return forward_flops(q, v, q.shape[0] * q.shape[1] * k.shape[1])


def _results(
    q: Tensor, k: Tensor, v: Tensor, block: Any, causal: bool, scale: float | None, config: str | None
) -> Results:
    with where_known():
        problem = sparse_problem_of(q, k, v, block=block, causal=causal, scale=scale)
        if not q.is_meta:
            check_device(q)
        if config is not None:
            config_for(config, q, k, v, problem)
    return empty_results(q)


FORWARD = Operator(
    f"flash_sparse_forward({TENSORS}, Tensor block_map, {NUMBERS}) -> (Tensor, Tensor)",
    call,
    fake_forward,
    setup=without_gradients,
    backward=no_gradients,
    flops=dense_count,
    casts=3,
)
LISTED = Operator(
    f"flash_sparse_listed({TENSORS}, {LISTS}, {NUMBERS}) -> (Tensor, Tensor)",
    run_listed,
    fake_listed,
    setup=without_gradients,
    backward=no_gradients,
    flops=dense_count,
    casts=3,
)
