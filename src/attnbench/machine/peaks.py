"""Data-sheet peaks of GPUs (`peaks.toml`), for the share of the peak that a kernel reaches.

GPUs of one family differ by half and more (H100 SXM 3.35 TB/s, PCIe 2.0 TB/s), so the whole name is matched: a GPU that
is not listed has no peak, and never that of another GPU.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attnbench.dtypes import DTYPES

ROWS = ("bf16", "fp16", "fp8", "int8", "tf32", "fp32")
"Throughputs of a GPU in peaks.toml."


@dataclass(frozen=True, slots=True)
class Peak:
    """Dense peaks by the data sheet."""

    tflops: float | None
    "None if the GPU has no such units, or the source does not give it"
    memory_tbps: float | None
    source: str


def peak(gpu_name: str, dtype: str) -> Peak | None:
    """Return the peak of a GPU.

    Args:
        gpu_name: torch's device name, such as ``NVIDIA H100 80GB HBM3``.
        dtype: dtype of a case (`dtypes.DTYPES`), or a row of `ROWS` (tf32: fp32 on tensor cores).

    Returns:
        The peak; None for a GPU that is not listed.

    Raises:
        ValueError: several rows match (a mistake in peaks.toml), or the dtype is unknown.
    """
    throughput = DTYPES[dtype].peak if dtype in DTYPES else dtype
    if throughput not in ROWS:
        raise ValueError(f"peaks: dtype={dtype} is not known; one of {', '.join(dict.fromkeys((*DTYPES, *ROWS)))}")
    row = find(gpu_name, rows())
    return None if row is None else Peak(row.get(throughput), row.get("memory_tbps"), row["source"])


def find(gpu_name: str, listed: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the only row whose pattern matches the whole name.

    Raises:
        ValueError: several match.
    """
    short = re.sub(r"^(NVIDIA )?(Tesla )?", "", gpu_name.strip())
    found = [row for row in listed if re.fullmatch(row["pattern"], short)]
    if len(found) > 1:
        patterns = " and ".join(repr(row["pattern"]) for row in found)
        raise ValueError(f"peaks: gpu={gpu_name} is ambiguous; one pattern may match, {patterns} do")
    return found[0] if found else None


@cache
def rows() -> tuple[Mapping[str, Any], ...]:
    """Return all rows of peaks.toml."""
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(data["gpu"])
