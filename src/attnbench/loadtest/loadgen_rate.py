"""Which rate LoadGen must be given so that the requests of its Server scenario come at the rate asked for.

LoadGen draws the gaps between requests (std::exponential_distribution over std::mt19937 with `schedule_rng_seed`), so a
load of N requests is off by about 1/sqrt(N) of its rate by chance.  The draws of a seed are always the same and scale
with the rate.  Worked out here beforehand, they say which rate brings exactly rate * duration requests within the
duration; load generators that draw all gaps themselves scale them in the same way.  Where a standard library draws
otherwise (the one of GNU is meant), the rate is off by chance as before, and the report says by how much.
"""

from __future__ import annotations

import numpy as np

from attnbench.loadtest.gaps import count_of


def rate_for_loadgen(rate: float, duration_s: float, seed: int) -> tuple[float, int]:
    """The rate to tell, and how many requests there are to be: the first at the start, the last at the end.

    Args:
        rate: asked for, requests a second.
        duration_s: of the load.
        seed: LoadGen's `schedule_rng_seed`.

    Raises:
        UsageError: there would be no request, or more than can be held.
    """
    count = count_of(rate, duration_s)
    return (float(unit_gaps(count - 1, seed).sum()) / duration_s if count > 1 else rate), count


def unit_gaps(count: int, seed: int) -> np.ndarray:
    """The first gaps of a seed at a rate of one."""
    words = np.random.RandomState(seed).randint(0, 2**32, size=2 * count, dtype=np.uint64).astype(np.float64)
    # std::generate_canonical<double, 53>: two words, the low one first.
    return -np.log1p(-(words[0::2] + words[1::2] * 2.0**32) / 2.0**64)
