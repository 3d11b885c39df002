"""Arguments of the portable paged HSTU kernel that travel together, by name: strides, and what is compiled in."""

from __future__ import annotations

from typing import NamedTuple


class ForwardStrides(NamedTuple):
    """Elements from one row and head to the next of each tensor of `hstu_paged_forward`."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    pool: int
    "from one key to the next"
    out: tuple[int, ...]
    "of splits, rows and heads"


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
