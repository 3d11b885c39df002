"""Arguments that all HSTU kernels share, in groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class RowStrides(NamedTuple):
    """Elements from one row and head of a packed tensor [rows, heads, dims] to the next."""

    row: Any
    head: Any

    @classmethod
    def of(cls, x: Tensor) -> RowStrides:
        """Strides of a tensor."""
        return cls(row=x.stride(0), head=x.stride(1))


class Sequences(NamedTuple):
    """Where the sequences of a call lie in packed tensors; a tensor that is not read may be None or any other."""

    offsets_ptr: Any
    "[sequences + 1], for keys"
    offsets_q_ptr: Any
    "the same for queries, with HAS_CACHE"
    num_targets_ptr: Any
    "[sequences], with HAS_TARGETS"


class Parts(NamedTuple):
    """Partial sums of an output [rows, heads, dim] whose keys are split."""

    sums: Tensor
    "fp32 [rows, parts, heads, dim]"
    scale: float
    "factor of the sum"
    shuffled: bool
    "whether columns are in the order of the Hopper kernels (`dense.parts`)"
