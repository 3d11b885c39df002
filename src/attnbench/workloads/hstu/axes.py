"""Spelling of the fields of an `HstuCase` on the command line and in suite files.

An axis that softmax attention has too has the same default, because both share one flag.  Imports without
torch.
"""

from __future__ import annotations

import math

from attnbench.workloads.attention.axes import parse_boolean, parse_size
from attnbench.workloads.attention.case import ACCEPTED_DTYPES, LARGEST_SIZE, MODES
from attnbench.workloads.base import Axis, one_of, precision
from attnbench.workloads.hstu.case import SELECTIONS
from attnbench.workloads.hstu.lengths import ACCEPTED_LENGTHS, ACCEPTED_TARGETS, read_lengths, read_targets


def parse_count(text: str) -> int:
    """Parse a whole number from 0 to `LARGEST_SIZE`."""
    if text != "0":
        try:
            return parse_size(text)
        except ValueError:
            raise ValueError(f"a whole number from 0 to {LARGEST_SIZE}") from None
    return 0


def parse_optional(text: str) -> int | None:
    """Parse a size or none."""
    if text == "none":
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise ValueError(f"none, or {error}") from None


def parse_alpha(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError("a finite number above 0")
    return value


def parse_lengths(text: str) -> str:
    """Parse a name or explicit lengths; the case checks them against batch and seqlen."""
    read_lengths(text)
    return text


def parse_targets(text: str) -> str:
    """Parse a specification of targets; the case checks it against the lengths."""
    read_targets(text)
    return text


AXES = (
    Axis("batch", parse_size, "sequences", 2),
    Axis("seqlen", parse_size, "rows of the longest sequence: prefix, history and targets", 1024),
    Axis("nheads", parse_size, "heads", 8),
    Axis("attn_dim", parse_size, "size of a query and a key", 64, elsewhere=("headdim",)),
    Axis("linear_dim", parse_size, "size of a value and an output; default: attn_dim", None, elsewhere=("headdim_v",)),
    Axis("alpha", parse_alpha, "factor of the scores; default: 1/sqrt(attn_dim)", None),
    Axis("scaling_seqlen", parse_size, "divisor of the outputs; default: seqlen", None),
    Axis("causal", parse_boolean, "hide later keys", True, boolean=True),
    Axis(
        "max_attn_len",
        parse_optional,
        "window: a row sees itself and this many rows before it, or none",
        None,
        elsewhere=("window",),
    ),
    Axis("contextual_len", parse_count, "rows of the contextual prefix, seen by and seeing all history", 0),
    Axis("num_targets", parse_targets, f"targets of a sequence: {ACCEPTED_TARGETS}", "0"),
    Axis("delta_q", parse_optional, "only this many last rows are queries, the rest is cached; or none", None),
    Axis("dtype", precision(*ACCEPTED_DTYPES), f"precision: {', '.join(ACCEPTED_DTYPES)}", "fp16"),
    Axis("mode", one_of(*MODES), f"what is timed: {', '.join(MODES)}", "fwd"),
    Axis("lengths", parse_lengths, f"lengths of the sequences: {ACCEPTED_LENGTHS}", "full"),
    Axis("block_size", parse_size, "block-sparse: keys of a block, a power of two", 32),
    Axis("block_counts", parse_size, "block-sparse: blocks a query selects; default: 4, or all there are", None),
    Axis("local_window", parse_optional, "block-sparse: rows of the sliding branch; none", None),
    Axis(
        "selection",
        one_of(*SELECTIONS),
        "block-sparse: each head selects its blocks, or all heads together (shared)",
        "head",
    ),
    Axis("pairs", parse_boolean, "block-sparse: an action (odd row) uses the blocks of its item", False, boolean=True),
    Axis("gates", parse_boolean, "block-sparse: weight the branches by gates", True, boolean=True),
)
