"""Arguments of the portable block-sparse kernels in groups: strides, and compile-time constants."""

from __future__ import annotations

from typing import NamedTuple

from attnbench.kernels.hstu.arguments import RowStrides


class PoolStrides(NamedTuple):
    """Strides of the tensors of `hstu_bsa_pool`."""

    k: RowStrides
    v: RowStrides


class ForwardStrides(NamedTuple):
    """Strides of the tensors of `hstu_bsa_select`, `hstu_bsa_attend` and `hstu_bsa_ticket`."""

    q: RowStrides
    k: RowStrides
    v: RowStrides


class GradMeansStrides(NamedTuple):
    """Strides of the tensors of `hstu_bsa_grad_means`."""

    q: RowStrides
    dout: RowStrides


class BackwardStrides(NamedTuple):
    """Strides of the tensors of `hstu_bsa_grad_keys` and `hstu_bsa_grad_rows`."""

    q: RowStrides
    k: RowStrides
    v: RowStrides
    dout: RowStrides


class GradKeysMeta(NamedTuple):
    """Compile-time constants of `hstu_bsa_grad_keys`."""

    ATTN_DIM: int
    LINEAR_DIM: int
    BLOCK_D: int
    BLOCK_V: int
    BLOCK_SIZE: int
    OTHERS: int
    GATES: int
    WINDOW: int | None
    HAS_TARGETS: bool
    HAS_CACHE: bool
    SHARED: bool
    ROWS: int
    KEYS: int
    TANH: bool


class GradMeansMeta(NamedTuple):
    """Compile-time constants of `hstu_bsa_grad_means`."""

    ATTN_DIM: int
    LINEAR_DIM: int
    BLOCK_D: int
    BLOCK_V: int
    BLOCK_SIZE: int
    GATES: int
    HAS_TARGETS: bool
    HAS_CACHE: bool
    ROWS: int
    BLOCKS: int
    TANH: bool


class GradRowsMeta(NamedTuple):
    """Compile-time constants of `hstu_bsa_grad_rows`."""

    ATTN_DIM: int
    LINEAR_DIM: int
    BLOCK_D: int
    BLOCK_V: int
    BLOCK_SIZE: int
    OTHERS: int
    GATES: int
    WINDOW: int | None
    HAS_TARGETS: bool
    HAS_CACHE: bool
    ROWS: int
    BLOCKS: int
    KEYS: int
    SLOTS: int
    TANH: bool


class TicketMeta(NamedTuple):
    """Compile-time constants of `hstu_bsa_ticket`."""

    ATTN_DIM: int
    LINEAR_DIM: int
    BLOCK_D: int
    BLOCK_V: int
    BLOCK_SIZE: int
    OTHERS: int
    GATES: int
    HAS_TARGETS: bool
    HAS_CACHE: bool
    SHARED: bool
    ROWS: int
    COMBINE_ROWS: int
    TANH: bool


class AttendMeta(NamedTuple):
    """Compile-time constants of `hstu_bsa_attend`."""

    ATTN_DIM: int
    LINEAR_DIM: int
    BLOCK_D: int
    BLOCK_V: int
    BLOCK_SIZE: int
    OTHERS: int
    HAS_TARGETS: bool
    HAS_CACHE: bool
    SHARED: bool
    ROWS: int
    TANH: bool


class SelectMeta(NamedTuple):
    """Compile-time constants of `hstu_bsa_select`."""

    ATTN_DIM: int
    LINEAR_DIM: int
    BLOCK_D: int
    BLOCK_V: int
    BLOCK_SIZE: int
    COUNTS: int
    GATES: int
    WINDOW: int | None
    HAS_TARGETS: bool
    HAS_CACHE: bool
    SHARED: bool
    PAIRS: bool
    ROWS: int
    BLOCKS: int
    KEYS: int
    BITS: int
    TANH: bool
