"""Our own kernels, usable without the bench: `flash_attention`, `flash_quant_attention`,
`flash_sparse_attention`, `flash_sparse_quant_attention`, `hstu_attention` and `hstu_bsa_attention`; `warm` compiles
them before their calls.

A family (`flash/`, `flash/quant/`, `flash/sparse/`, `flash/sparse_quant/`, `hstu/dense/`, `hstu/bsa/`, `hstu/paged/`)
has its public function in `api`, its checks in `problem`, its launch configurations beside their tuned defaults, and its
device code in `portable/` (Triton, sm_80 and later) and `hopper/` (Gluon, sm_90).  `compat` has other packages' names for
them.  Nothing else of attnbench is imported: the package can be copied as a whole.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.kernels.flash.api import flash_attention
    from attnbench.kernels.flash.quant.api import flash_quant_attention
    from attnbench.kernels.flash.sparse.api import flash_sparse_attention, make_lists
    from attnbench.kernels.flash.sparse_quant.api import flash_sparse_quant_attention
    from attnbench.kernels.hstu.bsa.api import hstu_bsa_attention
    from attnbench.kernels.hstu.dense.api import hstu_attention
    from attnbench.kernels.shared.card import Card
    from attnbench.kernels.warming import warm

__all__ = [
    "Card",
    "flash_attention",
    "flash_quant_attention",
    "flash_sparse_attention",
    "flash_sparse_quant_attention",
    "hstu_attention",
    "hstu_bsa_attention",
    "make_lists",
    "warm",
]

_HOME = {
    "Card": "shared.card",
    "flash_attention": "flash.api",
    "flash_quant_attention": "flash.quant.api",
    "flash_sparse_attention": "flash.sparse.api",
    "flash_sparse_quant_attention": "flash.sparse_quant.api",
    "make_lists": "flash.sparse.api",
    "hstu_attention": "hstu.dense.api",
    "hstu_bsa_attention": "hstu.bsa.api",
    "warm": "warming",
}


def __getattr__(name: str) -> Any:
    """Import a public function on first access: configurations can be read without torch and Triton."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
