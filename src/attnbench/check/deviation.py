"""Error of a tensor against the truth: by element, by row and by slice, streamed in chunks.

A row is the last dimension (one query of one head).  A slice is all rows of one index of the dimension before it (one
head of ``[B, S, H, D]``).  Rows and slices are judged by the ratio of their error to the error that rounding explains
there: a largest absolute error says nothing about a row whose values are a tenth of the largest, as most rows are under
a causal mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = {"cuda": 2**23, "cpu": 2**18}
"Elements per chunk: enough to fill a GPU, and no more than a CPU's caches hold."

SLICE_ROWS = 64
"Slices of fewer rows are not judged: they say no more than their worst element."


SMALLEST = 2.0**-10
"""Lower limit of a row's expected errors, as a share of the largest one of an element: smaller ones change nothing.
Where no error is expected, as in the row of a query that sees no key, none is accepted."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Errors of an output's elements that rounding alone explains, as standard deviations."""

    largest: float
    "largest one of an element"
    rows: Tensor
    "fp64 [rows]: sum of the squares of each row"


@dataclass(frozen=True, slots=True)
class Times:
    """The worst row or slice: the norm of its error over the norm of the error that rounding explains."""

    value: float
    at: int
    "flat index among the rows or slices"


NOWHERE = Times(0.0, 0)


@dataclass(frozen=True, slots=True)
class Deviation:
    """Error of a tensor against the truth; `place` converts its flat indices to indices of the tensor."""

    numel: int
    max_abs: float
    worst: int
    "flat index of `max_abs`"
    over: int
    "number of elements whose error is above `limit`"
    rel_l1: float
    "Σ|x - t| / Σ|t|; where the truth is all 0, / Σ|x|"
    head_rel_l1: float | None
    "the same for the worst slice; None where slices are too small to judge"
    rmse: float
    cosine: float
    "1 where both are all 0, 0 where only one is"
    largest: float
    "largest |t|"
    rms: float
    "root mean square of t"
    row: Times
    "value 0 where no errors are expected"
    slice: Times | None
    "None where slices are too small to judge, or no errors are expected"


def expected_of(errors: Tensor) -> Expected:
    """Reduce expected errors, a standard deviation per element, to what the comparison needs."""
    import torch

    if not errors.numel():
        return Expected(0.0, errors.new_zeros(0, dtype=torch.float64))
    width, largest = errors.shape[-1], errors.max().item()
    rows = errors.reshape(-1, width).square().sum(-1, dtype=torch.float64)
    return Expected(largest, rows.where(rows == 0, rows.clamp(min=width * (SMALLEST * largest) ** 2)))


def measure(
    found: Tensor, truth: Tensor, *, limit: float = math.inf, expected: Expected | None = None, by_design: float = 0.0
) -> Deviation:
    """Measure the error of `found` against `truth` on their device; neither is copied whole to fp64.

    Args:
        found: any floating dtype, finite, the shape of `truth`; empty tensors have no error.
        truth: fp64 or fp32.
        limit: errors above it are counted.
        expected: errors that rounding explains; None: rows and slices are not judged.
        by_design: root mean square of an error that is ignored in a row or slice.
    """
    if not truth.numel():
        return Deviation(
            numel=0,
            max_abs=0.0,
            worst=0,
            over=0,
            rel_l1=0.0,
            head_rel_l1=None,
            rmse=0.0,
            cosine=1.0,
            largest=0.0,
            rms=0.0,
            row=NOWHERE,
            slice=None,
        )
    width, lead = truth.shape[-1], tuple(truth.shape[:-1])
    table, rows = _stream(found.detach().reshape(-1, width), truth.reshape(-1, width), limit)
    errors, norms = rows["errors"], rows["norms"]
    absolute, truth_abs, found_abs, dot, found_square, over = (math.fsum(row[i] for row in table) for i in range(6))
    error_square, truth_square = errors.sum().item(), norms.sum().item()
    max_abs, worst = max((row[7], -int(row[8])) for row in table)
    scale = truth_abs or found_abs
    both = math.sqrt(found_square * truth_square)
    return Deviation(
        numel=truth.numel(),
        max_abs=max_abs,
        worst=-worst,
        over=int(over),
        rel_l1=absolute / scale if scale else 0.0,
        head_rel_l1=_worst_rel_l1(rows["off"].reshape(lead), rows["size"].reshape(lead)),
        rmse=math.sqrt(error_square / truth.numel()),
        cosine=dot / both if both else float(found_square == truth_square),
        largest=max(row[6] for row in table),
        rms=math.sqrt(truth_square / truth.numel()),
        row=NOWHERE if expected is None else _worst(errors, expected.rows, width * by_design**2),
        slice=None
        if expected is None
        else _worst_slice(errors.reshape(lead), expected.rows.reshape(lead), width * by_design**2),
    )


def _stream(found: Tensor, truth: Tensor, limit: float) -> tuple[list[list[float]], dict[str, Tensor]]:
    """Return nine sums and extremes of each chunk of rows, and of each row Σ(x - t)², Σt², Σ|x - t| and Σ|t|."""
    import torch

    rows, width = truth.shape
    sums = {
        name: torch.empty(rows, dtype=torch.float64, device=truth.device) for name in ("errors", "norms", "off", "size")
    }
    step = max(1, CHUNK["cuda" if truth.is_cuda else "cpu"] // width)
    chunks = []
    for start in range(0, rows, step):
        span = slice(start, min(start + step, rows))
        x, t = found[span].double(), truth[span].double()
        error = (x - t).abs_()
        of_rows = (error.square(), t.square(), error, t.abs())
        for values, name in zip(of_rows, sums, strict=True):
            sums[name][span] = values.sum(-1)
        top, at = error.reshape(-1).max(0)
        # Read once at the end: reading numbers chunk by chunk would synchronise with the device each time.
        chunks.append(
            torch.stack(
                [
                    error.sum(),
                    t.abs().sum(),
                    x.abs().sum(),
                    (x * t).sum(),
                    x.square().sum(),
                    (error > limit).sum().double(),
                    t.abs().max(),
                    top,
                    (at + start * width).double(),
                ]
            )
        )
    return torch.stack(chunks).tolist(), sums


def _worst(errors: Tensor, expected: Tensor, by_design: float) -> Times:
    # 0/0 is a row that is exact, as expected; any other error over 0 is infinitely wrong.
    times = (errors / expected).sqrt().nan_to_num(nan=0.0, posinf=math.inf)
    value, at = times.masked_fill(errors <= by_design, 0.0).max(0)
    return Times(value.item(), int(at.item()))


def _worst_rel_l1(off: Tensor, size: Tensor) -> float | None:
    """Largest Σ|x - t| / Σ|t| of a slice, from these sums by row; a slice whose truth is all 0 must be 0."""
    slices = off.shape[-1] if off.dim() > 1 else 1
    if off.numel() // slices < SLICE_ROWS:
        return None
    off, size = (values.reshape(-1, slices).sum(0) for values in (off, size))
    return float((off / size).nan_to_num(nan=0.0, posinf=math.inf).max().item())


def _worst_slice(errors: Tensor, expected: Tensor, by_design: float) -> Times | None:
    """Like `_worst`, for slices, from the row sums [..., slices]; a single dimension is one slice."""
    slices = errors.shape[-1] if errors.dim() > 1 else 1
    rows = errors.numel() // slices
    if rows < SLICE_ROWS:
        return None
    errors, expected = (values.reshape(rows, slices).sum(0) for values in (errors, expected))
    return _worst(errors, expected, rows * by_design)


def place(flat: int, shape: tuple[int, ...]) -> list[int]:
    """Convert a flat index to one of the shape."""
    index: list[int] = []
    for size in reversed(shape):
        flat, rest = divmod(flat, size)
        index.insert(0, rest)
    return index
