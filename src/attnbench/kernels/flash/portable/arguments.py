"""Arguments of the portable flash kernels in groups: tensors, strides, and compile-time constants."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

_Each = TypeVar("_Each")


class ForwardOperands(NamedTuple, Generic[_Each]):
    """The tensors of `flash_forward` and `decode_attend`, or their strides."""

    q: _Each
    k: _Each
    v: _Each
    out: _Each


class ForwardMeta(NamedTuple):
    """Compile-time constants of `flash_forward`."""

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


class DecodeMeta(NamedTuple):
    """Compile-time constants of `decode_attend`."""

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
    PRECISION: str
    CUT: bool
    DEPENDENT: bool


class CombineMeta(NamedTuple):
    """Compile-time constants of `decode_combine`; the first seven are those of the `DecodeMeta` of the first launch."""

    DIM_V: int
    BLOCK_V: int
    HAS_LEFT: bool
    HAS_RIGHT: bool
    PACKED: bool
    BLOCK_M: int
    BLOCK_N: int
    COLUMNS: int
    PARTS: int
    DEPENDENT: bool


class ColumnsOperands(NamedTuple, Generic[_Each]):
    """The tensors of `flash_backward_columns`, or their strides."""

    q: _Each
    k: _Each
    v: _Each
    dout: _Each
    dk: _Each
    dv: _Each


class ColumnsMeta(NamedTuple):
    """Compile-time constants of `flash_backward_columns`."""

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


class RowsOperands(NamedTuple, Generic[_Each]):
    """The tensors of `flash_backward_rows`, or their strides."""

    q: _Each
    k: _Each
    v: _Each
    dout: _Each
    dq: _Each


class RowsMeta(NamedTuple):
    """Compile-time constants of `flash_backward_rows`."""

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
