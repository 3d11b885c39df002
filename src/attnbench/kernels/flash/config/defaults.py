"""Tuned defaults of the flash forward, which are data: of ``defaults.toml`` the first row that fits is taken.

Imports without torch and Triton.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from attnbench.kernels.flash.config.forward import HOPPER, ForwardConfig, parse

__all__ = ["forward_config", "tuned"]

_TABLE = Path(__file__).with_name("defaults.toml")


@cache
def forward_config(
    capability: tuple[int, int], item_bytes: int, dim: int, seqlen: int, *, right: bool, hopper: bool = False
) -> ForwardConfig:
    """Tuned default of the forward.

    Args:
        capability: of the card; (0, 0) is the interpreter.
        item_bytes: of an element.
        dim: the larger of head and value dim.
        seqlen: most keys of a sequence.
        right: the mask ends to the right, as causal does.
        hopper: the kernel in hopper.forward takes the tensors; else none of its orders.
    """
    for row in tuned():
        config = parse(row["config"])
        if (capability[0] in row.get("cards", [capability[0]]) and item_bytes == row["item_bytes"]
                and dim <= row["dim"] and seqlen <= row.get("seqlen", seqlen) and right == row.get("right", right)
                and (hopper or config.order not in HOPPER)):
            return config
    raise AssertionError(f"defaults.toml has no row for {capability}, {item_bytes}, {dim}, {seqlen}, {right}")


@cache
def tuned() -> tuple[dict[str, Any], ...]:
    """Rows of the table, in the order they are tried."""
    return tuple(tomllib.loads(_TABLE.read_text(encoding="utf-8"))["forward"])
