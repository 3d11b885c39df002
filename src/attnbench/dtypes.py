"""The precisions of a case: one table for workloads, the check, ceilings and peaks.

A row says how the inputs of a case are stored.  A kernel with 8-bit inputs stores its results in a wider format
(`results`), which sets the rounding step for the check of outputs and the precision of the plain evaluation.  Imports
without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import dtype as torch_type


@dataclass(frozen=True, slots=True)
class DType:
    """One precision."""

    name: str
    "name in cases, flags and suites"
    torch: str
    "attribute of torch"
    bytes: int
    "per element"
    results: str
    "precision of the outputs of a kernel with such inputs"
    peak: str
    "row of machine/peaks.toml with the data sheet's throughput"


DTYPES: dict[str, DType] = {
    one.name: one
    for one in (
        DType("fp32", "float32", 4, "fp32", "fp32"),
        DType("fp16", "float16", 2, "fp16", "fp16"),
        DType("bf16", "bfloat16", 2, "bf16", "bf16"),
        DType("e4m3", "float8_e4m3fn", 1, "bf16", "fp8"),
        DType("int8", "int8", 1, "bf16", "int8"),
    )
}


def torch_dtype(name: str) -> torch_type:
    """Return the torch dtype of a precision.

    Raises:
        KeyError: the table has no such row.
    """
    import torch

    found: torch_type = getattr(torch, DTYPES[name].torch)
    return found
