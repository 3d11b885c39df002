"""Arguments of the portable block-sparse kernels that travel together, by name: strides, and what is compiled in."""

from __future__ import annotations

from typing import NamedTuple


class GradKeysStrides(NamedTuple):
    """Elements from one row and head to the next of each tensor of `hstu_bsa_grad_keys`."""

    q_row: int
    q_head: int
    k_row: int
    k_head: int
    v_row: int
    v_head: int
    dout_row: int
    dout_head: int


class GradKeysMeta(NamedTuple):
    """What `hstu_bsa_grad_keys` is compiled for."""

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


class GradMeansStrides(NamedTuple):
    """Elements from one row and head to the next of each tensor of `hstu_bsa_grad_means`."""

    q_row: int
    q_head: int
    dout_row: int
    dout_head: int


class GradMeansMeta(NamedTuple):
    """What `hstu_bsa_grad_means` is compiled for."""

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


class GradRowsStrides(NamedTuple):
    """Elements from one row and head to the next of each tensor of `hstu_bsa_grad_rows`."""

    q_row: int
    q_head: int
    k_row: int
    k_head: int
    v_row: int
    v_head: int
    dout_row: int
    dout_head: int


class GradRowsMeta(NamedTuple):
    """What `hstu_bsa_grad_rows` is compiled for."""

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


class TicketStrides(NamedTuple):
    """Elements from one row and head to the next of each tensor of `hstu_bsa_ticket`."""

    q_row: int
    q_head: int
    k_row: int
    k_head: int
    v_row: int
    v_head: int


class TicketMeta(NamedTuple):
    """What `hstu_bsa_ticket` is compiled for."""

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


class AttendStrides(NamedTuple):
    """Elements from one row and head to the next of each tensor of `hstu_bsa_attend`."""

    q_row: int
    q_head: int
    k_row: int
    k_head: int
    v_row: int
    v_head: int


class AttendMeta(NamedTuple):
    """What `hstu_bsa_attend` is compiled for."""

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


class SelectStrides(NamedTuple):
    """Elements from one row and head to the next of each tensor of `hstu_bsa_select`."""

    q_row: int
    q_head: int
    k_row: int
    k_head: int
    v_row: int
    v_head: int


class SelectMeta(NamedTuple):
    """What `hstu_bsa_select` is compiled for."""

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
