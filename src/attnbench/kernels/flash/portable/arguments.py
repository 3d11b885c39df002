"""Arguments of the portable flash kernels that travel together, by name: strides, and what a kernel is compiled for."""

from __future__ import annotations

from typing import NamedTuple


class ForwardStrides(NamedTuple):
    """Elements from one sequence, row and head to the next of each tensor of `flash_forward`."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    out: tuple[int, ...]


class ForwardMeta(NamedTuple):
    """What `flash_forward` is compiled for."""

    DIM: int
    DIM_V: int
    BLOCK_D: int
    BLOCK_V: int
    HAS_LEFT: bool
    HAS_RIGHT: bool
    PACKED: bool
    BLOCK_M: int
    BLOCK_N: int
    TMA: bool
    AHEAD: bool
    FUSED: bool
    MIX: bool
    PRECISION: str
    PERSISTENT: bool


class ColumnsStrides(NamedTuple):
    """Elements from one sequence, row and head to the next of each tensor of `flash_backward_columns`."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    dout: tuple[int, ...]
    dk: tuple[int, ...]
    dv: tuple[int, ...]


class ColumnsMeta(NamedTuple):
    """What `flash_backward_columns` is compiled for."""

    DIM: int
    DIM_V: int
    BLOCK_D: int
    BLOCK_V: int
    BLOCK_M: int
    BLOCK_N: int
    PAD: int
    HAS_LEFT: bool
    HAS_RIGHT: bool
    PACKED: bool
    GROUPED: bool
    ATOMIC: bool
    TMA: bool
    TMA_ADD: bool
    ORDER: str
    FUSED: bool
    BESIDE: bool
    STAGES: int
    MASKED_STAGES: int
    PRECISION: str


class RowsStrides(NamedTuple):
    """Elements from one sequence, row and head to the next of each tensor of `flash_backward_rows`."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    dout: tuple[int, ...]
    dq: tuple[int, ...]


class RowsMeta(NamedTuple):
    """What `flash_backward_rows` is compiled for."""

    DIM: int
    DIM_V: int
    BLOCK_D: int
    BLOCK_V: int
    BLOCK_M: int
    BLOCK_N: int
    PAD: int
    HAS_LEFT: bool
    HAS_RIGHT: bool
    PACKED: bool
    TMA: bool
    PRECISION: str
    MASKED_STAGES: int
