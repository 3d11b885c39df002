"""The precisions a case may have: the one table that workloads, the check, ceilings and peaks read.

A row says how the inputs of a case are stored.  The results of a kernel whose inputs have 8 bits are stored in a wider
format (`results`): that format sets the rounding step that outputs are checked with, and the precision of the plain
evaluation.  Imports without torch.
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
    "as cases, flags and suites spell it"
    torch: str
    "attribute of torch"
    bytes: int
    "of one element"
    results: str
    "the precision of what a kernel with such inputs writes"
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
    """The torch dtype of a precision.

    Raises:
        KeyError: the table has no such row.
    """
    import torch

    found: torch_type = getattr(torch, DTYPES[name].torch)
    return found
