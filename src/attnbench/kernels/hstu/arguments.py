"""Arguments of HSTU kernels that every family has, by name."""

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
        """Those of a tensor."""
        return cls(row=x.stride(0), head=x.stride(1))


class Sequences(NamedTuple):
    """Where the sequences of a call lie in packed tensors; what is not read may be None or any other tensor."""

    offsets_ptr: Any
    "[sequences + 1] of the keys"
    offsets_q_ptr: Any
    "of the queries, with HAS_CACHE"
    num_targets_ptr: Any
    "[sequences], with HAS_TARGETS"


class Parts(NamedTuple):
    """An output [rows, heads, dim] whose keys are split, before its parts are added up."""

    sums: Tensor
    "fp32 [rows, parts, heads, dim]"
    scale: float
    "factor of their sum"
    shuffled: bool
    "whether columns are as the kernels for Hopper leave them (`dense.parts`)"
