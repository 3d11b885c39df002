"""Spelling of the fields of a `SparseCase` on the command line and in suite files.

An axis that softmax attention has too has the same default, because they share one flag.  Imports without torch.
"""

from __future__ import annotations

import math

from attnbench.workloads.attention.axes import parse_boolean, parse_size
from attnbench.workloads.attention.case import ACCEPTED_DTYPES
from attnbench.workloads.base import Axis, one_of, precision
from attnbench.workloads.given_files import is_known, known_as
from attnbench.workloads.sparse.case import ACCEPTED_DENSITY, ACCEPTED_GRID, ACCEPTED_PATTERN, BLOCKS, PATTERNS


def parse_density(text: str) -> float | None:
    """Parse a share above 0, at most 1; none means the pattern's own."""
    if text == "none":
        return None
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise ValueError(f"{ACCEPTED_DENSITY}, or none where a file says the map")
    return value


def parse_pattern(text: str) -> str:
    """Parse the name of a pattern, or find a file and return its name and hash."""
    if text in PATTERNS:
        return text
    if is_known(text) or text.endswith((".npy", ".safetensors")):
        return known_as(text)
    raise ValueError(ACCEPTED_PATTERN)


def parse_grid(text: str) -> str | None:
    """Parse frames:height:width; the case checks them against the lengths."""
    if text == "none":
        return None
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**6 for part in parts):
        raise ValueError(f"none, or {ACCEPTED_GRID}")
    return ":".join(str(int(part)) for part in parts)


def parse_seed(text: str) -> int:
    """Parse a seed."""
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) < 2**32):
        raise ValueError("a whole number from 0 to 4294967295")
    return int(text)


AXES = (
    Axis("batch", parse_size, "sequences", 2),
    Axis("seqlen", parse_size, "queries of a sequence", 1024),
    Axis("seqlen_k", parse_size, "keys of a sequence; default: as many as queries", None),
    Axis("nheads", parse_size, "query heads", 8),
    Axis("nheads_kv", parse_size, "key and value heads, dividing nheads (GQA); default: nheads", None),
    Axis("headdim", parse_size, "size of a query, a key and a value", 64, elsewhere=("attn_dim",)),
    Axis("causal", parse_boolean, "hide later keys; the last query meets the last key", False, boolean=True),
    Axis("dtype", precision(*ACCEPTED_DTYPES), f"precision: {', '.join(ACCEPTED_DTYPES)}", "fp16"),
    Axis("block", one_of(*BLOCKS), f"queries x keys of a block: {', '.join(BLOCKS)}", BLOCKS[0]),
    Axis("pattern", parse_pattern, f"source of the block map: {ACCEPTED_PATTERN}", "random"),
    Axis(
        "density",
        parse_density,
        f"share of a row's visible blocks that the map keeps, {ACCEPTED_DENSITY}; default: 0.3, of pattern full 1",
        None,
    ),
    Axis("grid", parse_grid, f"tokens of a video, for the patterns sta, radial and frame: {ACCEPTED_GRID}", None),
    Axis("map_seed", parse_seed, "seed of random patterns", 0),
    Axis("widen", parse_boolean, "let a library with larger blocks round the map up to them", False, boolean=True),
)
