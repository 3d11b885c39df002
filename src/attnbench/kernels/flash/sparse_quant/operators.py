"""Block-sparse attention in 8 bits as operators of PyTorch: `attnbench::flash_sparse_quant_forward` of a map, and
`attnbench::flash_sparse_quant_listed` of the lists of one; no gradient passes through.

Arguments after the tensors are those of `flash_sparse_quant_attention`, the configuration by name.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnbench.kernels.flash.sparse.operators import (
    LISTS,
    NUMBERS,
    TENSORS,
    Results,
    dense_count,
    empty_results,
    lists_of,
    split_arguments,
)
from attnbench.kernels.flash.sparse.problem import check_map
from attnbench.kernels.flash.sparse_quant.calls import call, check_device, config_for
from attnbench.kernels.flash.sparse_quant.problem import problems_of, refused_here
from attnbench.kernels.shared.operators import Operator, no_gradients, where_known, without_gradients


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
        ValueError: as `flash_sparse_quant_attention`, except for checks of addresses.
    """
    with where_known():
        problem, _ = problems_of(q, k, v, block=block, causal=causal, scale=scale)
        with refused_here():
            check_map(block_map, problem, q.device)
    return _results(q, k, v, block, causal, scale, config)


def run_listed(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> Results:
    """Compute `out` and `lse` from lists, which are checked against the call."""
    tensors, made, numbers = split_arguments(given)
    return call(q, k, v, lists_of(tensors, made), *numbers)


def fake_listed(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> Results:
    """Check the arguments during tracing; the results have no values.

    Raises:
        ValueError: as `flash_sparse_quant_attention`, except for checks of addresses and of the lists.
    """
    *_, numbers = split_arguments(given)
    return _results(q, k, v, *numbers)


def _results(
    q: Tensor, k: Tensor, v: Tensor, block: Any, causal: bool, scale: float | None, config: str | None
) -> Results:
    with where_known():
        problem, _ = problems_of(q, k, v, block=block, causal=causal, scale=scale)
        if not q.is_meta:
            check_device(q)
        config_for(config, q, problem)
    return empty_results(q)


FORWARD = Operator(
    f"flash_sparse_quant_forward({TENSORS}, Tensor block_map, {NUMBERS}) -> (Tensor, Tensor)",
    call,
    fake_forward,
    setup=without_gradients,
    backward=no_gradients,
    flops=dense_count,
    casts=3,
)
LISTED = Operator(
    f"flash_sparse_quant_listed({TENSORS}, {LISTS}, {NUMBERS}) -> (Tensor, Tensor)",
    run_listed,
    fake_listed,
    setup=without_gradients,
    backward=no_gradients,
    flops=dense_count,
    casts=3,
)
