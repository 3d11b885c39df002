"""Arguments that kernels of every family share, in groups."""

from __future__ import annotations

from typing import Any, NamedTuple


class Strides(NamedTuple):
    """Elements from one sequence, row and head of a tensor to the next; the dims of a row are contiguous."""

    batch: Any
    row: Any
    head: Any
