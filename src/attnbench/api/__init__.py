"""The Python API: time a function, compare several, run a suite, load a run.

    import attnbench

    attnbench.bench(lambda: kernel(x))                       # fn: 8.13 ±0.02 µs  (cupti, cold cache, …)
    attnbench.compare({"torch": f, "mine": g})               # interleaved; ratios with intervals
    attnbench.run("quick").to_pandas()

Similar to triton's do_bench, with an interval, for any function.
"""

from __future__ import annotations

from attnbench.api.answers import Comparison, Result, Timing
from attnbench.api.functions import bench, compare
from attnbench.api.running import load, run

__all__ = ["Comparison", "Result", "Timing", "bench", "compare", "load", "run"]
