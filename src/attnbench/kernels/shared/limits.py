"""Limits of the 32-bit numbers in kernels: rows, strides, tiles, and factors in fp32."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

LARGEST_ROWS = 2**30
"Most rows of all sequences: kernels number rows, and descriptor coordinates, in 32 bits."
LARGEST_STRIDE = 2**23
"Most elements between rows: within a tile, up to 256 rows are addressed in 32 bits; between tiles in 64."
LARGEST_TILES = 2**30
"Most tiles of 16 rows of all sequences and heads, each as long as the longest: kernels number tiles in 32 bits."
LARGEST_FACTOR = 1e30
"Largest factor of the scores: kernels hold it in fp32, multiplied by log2(e) or halved."


def is_whole(value: object) -> TypeGuard[int]:
    """Whether an argument is an integer and not a boolean; also one that a compiler traces."""
    return type(value) is int or type(value) is torch.SymInt


def check_flags(who: str, **flags: object) -> None:
    """Refuse what is neither True nor False: "no" would count as True, and None as False.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    for name, value in flags.items():
        if type(value) is not bool:
            raise ValueError(f"{who}: {name}={repr(value)[:40]} cannot be used; True or False")


def as_float(value: Any) -> Any:
    """A number as a float, infinite if too large; a one-element tensor is read.  Anything else is returned unchanged."""
    if isinstance(value, bool) or not isinstance(value, Real | torch.SymInt | torch.SymFloat | Tensor):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (RuntimeError, ValueError):  # several numbers, or none
        return value


def lies_in_rows(x: Tensor) -> bool:
    """Whether the portable kernels can read [..., rows, heads, dims] with its strides."""
    return x.stride(-1) == 1 and (x.shape[-3] <= 1 or x.stride(-3) <= LARGEST_STRIDE)


class Fault(NamedTuple):
    """What an error says, in this order."""

    argument: str
    value: object
    wrong: str
    accepted: str


def extent_fault(tensors: Mapping[str, Tensor], sequences: int, longest: int) -> Fault | None:
    """What is too large for the kernels' 32-bit numbers.

    Element offsets are 64-bit in every kernel, so tensors may have more than 2³¹ elements.  Rows, tiles, and the elements
    within a tile are numbered in 32 bits.

    Args:
        tensors: by name, [..., rows, heads, dims].
        sequences: how many.
        longest: upper bound of the rows of a sequence.
    """
    for name, x in tensors.items():
        if torch.SymInt in tuple(map(type, (*x.shape, sequences, longest))):  # torch 2.11 traces no `in map`
            continue  # traced for any extents: the call itself checks its own
        rows, columns = math.prod(x.shape[:-2]), math.prod(x.shape[-2:])
        if rows > LARGEST_ROWS:
            return Fault(f"{name}.shape", tuple(x.shape), "has too many rows", f"at most {LARGEST_ROWS}")
        if columns > LARGEST_STRIDE:  # results, and gradients, are contiguous
            accepted = f"at most {LARGEST_STRIDE} elements"
            return Fault(f"{name}.shape", tuple(x.shape), "has rows that are too long", accepted)
        if x.shape[-3] > 1 and x.stride(-3) > LARGEST_STRIDE:
            return Fault(f"{name}.stride", x.stride(), "has rows too far apart", f"at most {LARGEST_STRIDE} elements")
        tiles = sequences * x.shape[-2] * -(-longest // 16)
        if tiles > LARGEST_TILES:
            return Fault(
                f"{name}.shape",
                tuple(x.shape),
                f"has {tiles} tiles, of {sequences} sequences of up to {longest} rows in each head",
                f"at most {LARGEST_TILES} tiles of 16 rows",
            )
    return None
