"""Block-sparse attention in 8 bits as operators of PyTorch: `attnbench::flash_sparse_quant_forward` of a map, and
`attnbench::flash_sparse_quant_listed` of the lists of one; no gradient passes through.

Arguments after the tensors are those of `flash_sparse_quant_attention`, the configuration by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.kernels.flash.sparse.lists import BlockLists
from attnbench.kernels.flash.sparse.problem import check_map
from attnbench.kernels.flash.sparse_quant.calls import call, check_device, config_for
from attnbench.kernels.flash.sparse_quant.problem import problems_of, said_here
from attnbench.kernels.shared.operators import Operator, no_gradients, without_gradients

TENSORS = "Tensor q, Tensor k, Tensor v"
NUMBERS = "int[] block, bool causal, float? scale, str? config"


def run_forward(q: Tensor, k: Tensor, v: Tensor, block_map: Tensor, *numbers: Any) -> tuple[Tensor, Tensor]:
    """`out` and `lse` of a map."""
    return call(q, k, v, block_map, *numbers)


def fake_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_map: Tensor,
    block: Any,
    causal: bool,
    scale: float | None,
    config: str | None,
) -> tuple[Tensor, Tensor]:
    """Check the arguments while a caller is traced; results without values.

    Raises:
        ValueError: as `flash_sparse_quant_attention` says, but for what hangs on addresses.
    """
    problem, _ = problems_of(q, k, v, block=block, causal=causal, scale=scale)
    with said_here():
        check_map(block_map, problem, q.device)
    return _results(q, k, v, block, causal, scale, config)


def run_listed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    counts: Tensor,
    indices: Tensor,
    places: Tensor | None,
    items: Tensor,
    share: int,
    unit: int,
    made_for: Any,
    seqlen_q: int,
    seqlen_k: int,
    made_causal: bool,
    *numbers: Any,
) -> tuple[Tensor, Tensor]:
    """`out` and `lse` of lists, which are held against the call."""
    lists = BlockLists(
        counts=counts,
        indices=indices,
        places=places,
        items=items,
        share=share,
        unit=unit,
        block=tuple(made_for),
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        causal=made_causal,
    )
    return call(q, k, v, lists, *numbers)


def fake_listed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    counts: Tensor,
    indices: Tensor,
    places: Tensor | None,
    items: Tensor,
    share: int,
    unit: int,
    made_for: Any,
    seqlen_q: int,
    seqlen_k: int,
    made_causal: bool,
    block: Any,
    causal: bool,
    scale: float | None,
    config: str | None,
) -> tuple[Tensor, Tensor]:
    """Check the arguments while a caller is traced; results without values.

    Raises:
        ValueError: as `flash_sparse_quant_attention` says, but for what hangs on addresses, and but for the lists.
    """
    return _results(q, k, v, block, causal, scale, config)


def _results(
    q: Tensor, k: Tensor, v: Tensor, block: Any, causal: bool, scale: float | None, config: str | None
) -> tuple[Tensor, Tensor]:
    problem, _ = problems_of(q, k, v, block=block, causal=causal, scale=scale)
    check_device(q)
    config_for(config, q, problem)
    return q.new_empty(q.shape), q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)


FORWARD = Operator(
    f"flash_sparse_quant_forward({TENSORS}, Tensor block_map, {NUMBERS}) -> (Tensor, Tensor)",
    run_forward,
    fake_forward,
    setup=without_gradients,
    backward=no_gradients,
    casts=3,
)
LISTED = Operator(
    f"flash_sparse_quant_listed({TENSORS}, Tensor counts, Tensor indices, Tensor? places, Tensor items, int share, "
    f"int unit, int[] made_for, SymInt seqlen_q, SymInt seqlen_k, bool made_causal, {NUMBERS}) -> (Tensor, Tensor)",
    run_listed,
    fake_listed,
    setup=without_gradients,
    backward=no_gradients,
    casts=3,
)
