"""Tuned defaults of the flash forward: rows of ``defaults.toml``, of which the first that matches is used.

Can be imported without torch and Triton.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

from attnbench.kernels.flash.config.forward import HOPPER, ForwardConfig
from attnbench.kernels.shared.configs import Defaults
from attnbench.kernels.shared.tiling import Grid

__all__ = ["TABLE", "forward_config", "installed_triton"]

TABLE = Defaults(Path(__file__).with_name("defaults.toml"))


@cache
def installed_triton() -> tuple[int, int] | None:
    """Major and minor version of the Triton that compiles; None without one.

    Packages of more than one name have it, such as `pytorch-triton`, and copies have none: so the module is asked.
    """
    try:
        from triton import __version__ as version
    except ImportError:
        return None
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


@lru_cache(maxsize=1024)  # depends on the shape: not cached, because there may be very many shapes
def forward_config(
    capability: tuple[int, int],
    item_bytes: int,
    dim: int,
    seqlen: int,
    *,
    right: bool,
    grid: Grid | None = None,
    hopper: bool = False,
    triton: tuple[int, int] | None = None,
) -> ForwardConfig:
    """Tuned default of the forward.

    Args:
        capability: of the card; (0, 0) is the interpreter.
        item_bytes: bytes of an element.
        dim: the larger of head and value dim.
        seqlen: most keys of a sequence.
        right: whether the mask has a right bound, as with causal.
        grid: of the call; None: more tiles than any card has SMs.
        hopper: whether hopper.forward supports the tensors; otherwise its orders are not used.
        triton: version that compiles it; None: one that every row is for.
    """
    compiler: Mapping[str, list[int]] = {} if triton is None else {"triton": list(triton)}
    return TABLE.first(
        "forward",
        ForwardConfig,
        cards=capability[0],
        item_bytes=item_bytes,
        dim=dim,
        seqlen=seqlen,
        right=right,
        grid=grid,
        also=lambda config: hopper or config.order not in HOPPER,
        **compiler,
    )
