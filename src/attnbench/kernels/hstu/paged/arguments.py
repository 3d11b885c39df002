"""Arguments of the portable paged HSTU kernels in groups: strides, and compile-time constants."""

from __future__ import annotations

from typing import NamedTuple

from attnbench.kernels.hstu.arguments import RowStrides


class SplitStrides(NamedTuple):
    """Strides in elements of an output or of partial sums: per part of the keys, row and head."""

    split: int
    row: int
    head: int


class ForwardStrides(NamedTuple):
    """Strides of the tensors of `hstu_paged_forward`."""

    q: RowStrides
    k: RowStrides
    v: RowStrides
    pool: int
    "from one key to the next"
    out: SplitStrides


class AppendStrides(NamedTuple):
    """Strides of the tensors of `hstu_paged_append`."""

    q: RowStrides
    k: RowStrides
    v: RowStrides
    pool: int
    "from one key to the next"


class ForwardMeta(NamedTuple):
    """Compile-time constants of `hstu_paged_forward`."""

    DIM: int
    BLOCK_D: int
    PAGE: int
    HAS_TARGETS: bool
    BLOCK_M: int
    BLOCK_N: int
    APPROXIMATE: bool
    PRECISION: str
    AHEAD: bool
    TMA: bool
    NEW_STAGES: int
