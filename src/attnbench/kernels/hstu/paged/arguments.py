"""Arguments of the portable paged HSTU kernel that travel together, by name: strides, and what is compiled in."""

from __future__ import annotations

from typing import NamedTuple

from attnbench.kernels.hstu.arguments import RowStrides


class SplitStrides(NamedTuple):
    """Elements from one part of the keys, row and head of an output, or of partial sums, to the next."""

    split: int
    row: int
    head: int


class ForwardStrides(NamedTuple):
    """Of the tensors of `hstu_paged_forward`."""

    q: RowStrides
    k: RowStrides
    v: RowStrides
    pool: int
    "from one key to the next"
    out: SplitStrides


class AppendStrides(NamedTuple):
    """Of the tensors of `hstu_paged_append`."""

    q: RowStrides
    k: RowStrides
    v: RowStrides
    pool: int
    "from one key to the next"


class ForwardMeta(NamedTuple):
    """What `hstu_paged_forward` is compiled for."""

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
