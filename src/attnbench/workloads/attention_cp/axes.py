"""Spelling of the fields of a `CpCase` on the command line and in suite files.

An axis that softmax attention has too has the same default, because both share one flag.  Imports without torch.
"""

from __future__ import annotations

from attnbench.workloads.attention.axes import parse_boolean, parse_size
from attnbench.workloads.attention.case import ACCEPTED_DTYPES
from attnbench.workloads.attention.case import read_lengths as read_softmax_lengths
from attnbench.workloads.attention_cp.case import FUNCTIONS, MOST_RANKS, SOFTMAX
from attnbench.workloads.base import Axis, one_of, precision
from attnbench.workloads.hstu.lengths import read_lengths as read_hstu_lengths

ACCEPTED_LENGTHS = "full, uniform, zipf, of hstu kuairand, or a length for each sequence: 100:7"


def parse_world(text: str) -> int:
    """Parse a number of ranks."""
    try:
        found = parse_size(text)
    except ValueError:
        found = 0
    if not 1 <= found <= MOST_RANKS:
        raise ValueError(f"a whole number from 1 to {MOST_RANKS}")
    return found


def parse_lengths(text: str) -> str:
    """Parse a name or explicit lengths of either function; the case checks them."""
    try:
        read_hstu_lengths(text)
    except ValueError:
        read_softmax_lengths(text)
    return text


AXES = (
    Axis("world", parse_world, "ranks that share a problem: GPUs, or processes on a CPU", 2),
    Axis("function", one_of(*FUNCTIONS), f"what is computed: {', '.join(FUNCTIONS)}", SOFTMAX),
    Axis("batch", parse_size, "sequences", 2),
    Axis("seqlen", parse_size, "rows of a sequence (the longest, with --lengths)", 1024),
    Axis("nheads", parse_size, "query heads", 8),
    Axis("nheads_kv", parse_size, "key and value heads, dividing nheads (GQA); default: nheads", None),
    Axis("headdim", parse_size, "size of a query, key and value", 64, elsewhere=("attn_dim",)),
    Axis("causal", parse_boolean, "hide later keys", False, boolean=True),
    Axis("dtype", precision(*ACCEPTED_DTYPES), f"precision: {', '.join(ACCEPTED_DTYPES)}", "fp16"),
    Axis("lengths", parse_lengths, f"lengths of the sequences: {ACCEPTED_LENGTHS}", "full"),
)
