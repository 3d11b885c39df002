"""Functions of other packages, computed by our kernels: a program only changes its imports.

    from flash_attn import flash_attn_func              →  from attnbench.kernels.compat import flash_attn_func
    from flash_attn_interface import flash_attn_func    →  from attnbench.kernels.compat.flash_attn_interface import …
    from hstu import hstu_attn_varlen_func              →  from attnbench.kernels.compat import hstu_attn_varlen_func

Modules have the names under which the packages are imported: `flash_attn` (FlashAttention 2), `flash_attn_interface`
(FlashAttention 3), `hstu` and the older `hstu_attn` (NVIDIA's), `generative_recommenders` (Meta's).  Signatures are those
of the versions in tests/kernels/compat_signatures.toml.  Results and gradients equal those of the packages up to rounding.
An argument that our kernels do not support is refused by name, unless its value means that it is not used.

`transformers` registers `flash_attention` as an attention of Hugging Face's models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.kernels.compat.flash_attn import flash_attn_func, flash_attn_varlen_func
    from attnbench.kernels.compat.generative_recommenders import hstu_mha
    from attnbench.kernels.compat.hstu import hstu_attn_varlen_func

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "hstu_attn_varlen_func", "hstu_mha"]

_HOME = {
    "flash_attn_func": "flash_attn",
    "flash_attn_varlen_func": "flash_attn",
    "hstu_attn_varlen_func": "hstu",
    "hstu_mha": "generative_recommenders",
}


def __getattr__(name: str) -> Any:
    """Import a function on first access."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
