"""Floating-point operations as `torch.utils.flop_counter.FlopCounterMode` counts them: by PyTorch's own convention.

Products of whole sequences count, also what a mask hides: a causal call counts as much as one without a mask, and a map
of blocks changes nothing.  Only matrix products count, a multiply-add as 2, with those that a backward computes again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def forward_flops(q: Tensor, v: Tensor, pairs: int) -> int:
    """Q Kᵀ and P V of so many (query, key) pairs in every head of q [..., H, D] and v [..., Dv]."""
    return 2 * (q.shape[-1] + v.shape[-1]) * q.shape[-2] * pairs


def backward_flops(q: Tensor, v: Tensor, pairs: int) -> int:
    """The same of a backward: Q Kᵀ again, dV, dP, dQ and dK."""
    return 2 * (3 * q.shape[-1] + 2 * v.shape[-1]) * q.shape[-2] * pairs


def packed_pairs(count: Callable[[int, int], int], offsets_q: Any, offsets_k: Any, max_q: Any, max_k: Any) -> int:
    """The sum of a count of pairs, of queries and keys, over packed sequences: by their bounds if offsets have no values.

    Offsets, and bounds, that are None are those of the other side.
    """
    offsets_q, offsets_k = _both(offsets_q, offsets_k)
    if has_no_values(offsets_k):
        max_q, max_k = _both(max_q, max_k)
        pairs: int = (offsets_k.shape[0] - 1) * count(max_q, max_k)  # the number of sequences may be a symbol
        return pairs
    return sum(map(count, offsets_q.diff().tolist(), offsets_k.diff().tolist()))


def _both(one: Any, other: Any) -> tuple[Any, Any]:
    return other if one is None else one, one if other is None else other


def has_no_values(x: Tensor) -> bool:
    """Whether a tensor is traced or on "meta": others are read, as PyTorch's counter does."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(x, FakeTensor | FunctionalTensor) or x.device.type == "meta"
