"""Tuned defaults of the flash forward: rows of ``defaults.toml``, of which the first that matches is used.

Can be imported without torch and Triton.
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
        item_bytes: bytes of an element.
        dim: the larger of head and value dim.
        seqlen: most keys of a sequence.
        right: whether the mask has a right bound, as causal does.
        hopper: whether hopper.forward supports the tensors; otherwise its orders are not used.
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
