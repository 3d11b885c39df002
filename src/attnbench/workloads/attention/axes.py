"""Spelling of the fields of an `AttentionCase` on the command line and in suite files.

The defaults are the shape of the minimal benchmark in the seed documents.  Imports without torch.
"""

from __future__ import annotations

from attnbench.workloads.attention.case import ACCEPTED_DTYPES, ACCEPTED_LENGTHS, LARGEST_SIZE, MODES, read_lengths
from attnbench.workloads.base import Axis, one_of, precision

ACCEPTED_WINDOW = "none, LEFT or LEFT:RIGHT in keys, -1 for unbounded (LEFT alone: RIGHT is 0 if causal, else LEFT)"


def parse_size(text: str) -> int:
    """Parse a whole number from 1 to `LARGEST_SIZE`."""
    if not (text.isascii() and text.isdigit() and len(text) < 12 and 1 <= int(text) <= LARGEST_SIZE):
        raise ValueError(f"a whole number from 1 to {LARGEST_SIZE}")
    return int(text)


def parse_boolean(text: str) -> bool:
    """Parse true or false."""
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def parse_window(text: str) -> tuple[int, int] | int | None:
    """Parse a window; a single number is completed by the case, which knows whether it is causal."""
    if text == "none":
        return None
    try:
        bounds = [int(bound) for bound in text.split(":")]
    except ValueError:
        raise ValueError(ACCEPTED_WINDOW) from None
    if len(bounds) > 2 or min(bounds) < -1:
        raise ValueError(ACCEPTED_WINDOW)
    return bounds[0] if len(bounds) == 1 else (bounds[0], bounds[1])


def parse_lengths(text: str) -> str:
    """Parse a name or explicit lengths; the case checks them against batch and seqlen."""
    read_lengths(text)
    return text


AXES = (
    Axis("batch", parse_size, "sequences", 2),
    Axis("seqlen", parse_size, "queries of a sequence (the longest, with --lengths)", 1024),
    Axis("seqlen_k", parse_size, "keys of a sequence; default: as many as queries", None),
    Axis("nheads", parse_size, "query heads", 8),
    Axis("nheads_kv", parse_size, "key and value heads, dividing nheads (GQA); default: nheads", None),
    Axis("headdim", parse_size, "size of a query and a key", 64, elsewhere=("attn_dim",)),
    Axis("headdim_v", parse_size, "size of a value and an output; default: headdim", None, elsewhere=("linear_dim",)),
    Axis("causal", parse_boolean, "hide later keys; the last query meets the last key", False, boolean=True),
    Axis("window", parse_window, f"sliding window: {ACCEPTED_WINDOW}", None),
    Axis("dtype", precision(*ACCEPTED_DTYPES), f"precision: {', '.join(ACCEPTED_DTYPES)}", "fp16"),
    Axis("mode", one_of(*MODES), f"what is timed: {', '.join(MODES)}", "fwd"),
    Axis("lengths", parse_lengths, f"lengths of the sequences: {ACCEPTED_LENGTHS}", "full"),
)
