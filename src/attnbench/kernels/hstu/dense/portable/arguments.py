"""Arguments of the portable dense HSTU kernels that travel together, by name: strides, and what is compiled in."""

from __future__ import annotations

from typing import NamedTuple


class ForwardStrides(NamedTuple):
    """Elements from one row and head to the next of each tensor of `hstu_dense_forward`."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    out: tuple[int, ...]


class ForwardMeta(NamedTuple):
    """What `hstu_dense_forward` is compiled for."""

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
    """Elements from one row and head to the next of each tensor of `hstu_dense_backward_columns`."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    dout: tuple[int, ...]
    dq: tuple[int, ...]
    dk: tuple[int, ...]
    dv: tuple[int, ...]


class ColumnsMeta(NamedTuple):
    """What `hstu_dense_backward_columns` is compiled for."""

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
    """Elements from one row and head to the next of each tensor of `hstu_dense_backward_rows`."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    dout: tuple[int, ...]
    dq: tuple[int, ...]


class RowsMeta(NamedTuple):
    """What `hstu_dense_backward_rows` is compiled for."""

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
