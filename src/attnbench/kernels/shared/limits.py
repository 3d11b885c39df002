"""What the 32-bit numbers in kernels can hold: rows, strides, tiles, and factors in fp32."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

LARGEST_ROWS = 2**30
"Of all sequences: kernels number rows, and coordinates of descriptors, in 32 bits."
LARGEST_STRIDE = 2**23
"Elements between rows: up to 256 of a tile are counted from its first row in 32 bits; from tile to tile it is 64."
LARGEST_TILES = 2**30
"Tiles of 16 rows of all sequences and heads, each as long as the longest: kernels number their tiles in 32 bits."
LARGEST_FACTOR = 1e30
"Of scores: kernels have it in fp32, with log2(e) or halved."


def is_whole(value: object) -> TypeGuard[int]:
    """Whether an argument is a whole number, and not True or False; one that a compiler traces is too."""
    return type(value) is int or type(value) is torch.SymInt


def check_flags(who: str, **flags: object) -> None:
    """Refuse what is neither True nor False: "no" would be taken for True, and None for False.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    for name, value in flags.items():
        if type(value) is not bool:
            raise ValueError(f"{who}: {name}={repr(value)[:40]} cannot be used; True or False")


def as_float(value: Any) -> Any:
    """A number as a float, infinite if it is too large for one; a tensor's only one is read.  What is none as it is."""
    if isinstance(value, bool) or not isinstance(value, Real | torch.SymInt | torch.SymFloat | Tensor):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (RuntimeError, ValueError):  # several numbers, or none
        return value


def lies_in_rows(x: Tensor) -> bool:
    """Whether the portable kernels can read [..., rows, heads, dims] as it lies."""
    return x.stride(-1) == 1 and (x.shape[-3] <= 1 or x.stride(-3) <= LARGEST_STRIDE)


class Fault(NamedTuple):
    """What a refusal says, in its order."""

    argument: str
    value: object
    wrong: str
    accepted: str


def extent_fault(tensors: Mapping[str, Tensor], sequences: int, longest: int) -> Fault | None:
    """What is too large for the kernels' 32-bit numbers.

    Numbers of elements are 64 bits wide in every kernel, so tensors may have more than 2³¹ of them.  What kernels have
    in 32 bits are rows, tiles, and the elements within a tile.

    Args:
        tensors: by name, [..., rows, heads, dims].
        sequences: how many.
        longest: at least the most rows of a sequence.
    """
    for name, x in tensors.items():
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
