"""Arguments of the portable dense HSTU kernels in groups: strides, and compile-time constants."""

from __future__ import annotations

from typing import NamedTuple

from attnbench.kernels.hstu.arguments import RowStrides


class ForwardStrides(NamedTuple):
    """Strides of the tensors of `hstu_dense_forward`."""

    q: RowStrides
    k: RowStrides
    v: RowStrides
    out: RowStrides


class ForwardMeta(NamedTuple):
    """Compile-time constants of `hstu_dense_forward`."""

    ATTN_DIM: int
    LINEAR_DIM: int
    BLOCK_D: int
    BLOCK_V: int
    CAUSAL: bool
    HAS_PREFIX: bool
    HAS_TARGETS: bool
    HAS_WINDOW: bool
    HAS_CACHE: bool
    BLOCK_M: int
    BLOCK_N: int
    APPROXIMATE: bool
    PRECISION: str
    TMA: bool
    MASKED_STAGES: int
    AHEAD: bool


class ColumnsStrides(NamedTuple):
    """Strides of the tensors of `hstu_dense_backward_columns`."""

    q: RowStrides
    k: RowStrides
    v: RowStrides
    dout: RowStrides
    dq: RowStrides
    dk: RowStrides
    dv: RowStrides


class ColumnsMeta(NamedTuple):
    """Compile-time constants of `hstu_dense_backward_columns`."""

    ATTN_DIM: int
    LINEAR_DIM: int
    BLOCK_D: int
    BLOCK_V: int
    CAUSAL: bool
    HAS_PREFIX: bool
    HAS_TARGETS: bool
    HAS_WINDOW: bool
    HAS_CACHE: bool
    BLOCK_M: int
    BLOCK_N: int
    APPROXIMATE: bool
    PRECISION: str
    ATOMIC: bool
    TMA: bool
    MASKED_STAGES: int
    PART: str


class RowsStrides(NamedTuple):
    """Strides of the tensors of `hstu_dense_backward_rows`."""

    q: RowStrides
    k: RowStrides
    v: RowStrides
    dout: RowStrides
    dq: RowStrides


class RowsMeta(NamedTuple):
    """Compile-time constants of `hstu_dense_backward_rows`."""

    ATTN_DIM: int
    LINEAR_DIM: int
    BLOCK_D: int
    BLOCK_V: int
    CAUSAL: bool
    HAS_PREFIX: bool
    HAS_TARGETS: bool
    HAS_WINDOW: bool
    HAS_CACHE: bool
    BLOCK_M: int
    BLOCK_N: int
    APPROXIMATE: bool
    PRECISION: str
    TMA: bool
    MASKED_STAGES: int
