"""attnbench: benchmarks of attention kernels, with reliable numbers.

The names below are imported from `attnbench.api` at first use: importing the package imports neither
torch nor anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.api import Comparison, Result, Timing, bench, compare, load, run

__version__ = "0.1.0"
__all__ = ["Comparison", "Result", "Timing", "bench", "compare", "load", "run"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        import attnbench.api

        return getattr(attnbench.api, name)
    raise AttributeError(f"module 'attnbench' has no attribute '{name}'")
