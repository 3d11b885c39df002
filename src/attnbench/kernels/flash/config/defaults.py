"""Tuned defaults of the flash forward, which are data: of ``defaults.toml`` the first row that fits is taken.

Imports without torch and Triton.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from attnbench.kernels.flash.config.forward import HOPPER, ForwardConfig
from attnbench.kernels.shared.configs import Defaults

__all__ = ["TABLE", "forward_config"]

TABLE = Defaults(Path(__file__).with_name("defaults.toml"))


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
    return TABLE.first(
        "forward",
        ForwardConfig,
        cards=capability[0],
        item_bytes=item_bytes,
        dim=dim,
        seqlen=seqlen,
        right=right,
        also=lambda config: hopper or config.order not in HOPPER,
    )
