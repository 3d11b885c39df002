"""The rate to give LoadGen so that the requests of its Server scenario arrive at the requested rate.

LoadGen draws the gaps between requests (std::exponential_distribution over std::mt19937 with `schedule_rng_seed`), so
the rate of a load of N requests deviates by about 1/sqrt(N) by chance.  The draws of a seed are always the same and
scale with the rate.  Computed here in advance, they give the rate at which exactly rate * duration requests arrive
within the duration; load generators that draw all gaps themselves scale them in the same way.  With a standard library
that draws differently (this is GNU's), the rate deviates by chance as before, and the report says by how much.
"""

from __future__ import annotations

import numpy as np

from attnbench.loadtest.gaps import count_of


def rate_for_loadgen(rate: float, duration_s: float, seed: int) -> tuple[float, int]:
    """Return the rate to give LoadGen, and the number of requests: the first at the start, the last at the end.

    Args:
        rate: requested, requests per second.
        duration_s: of the load.
        seed: LoadGen's `schedule_rng_seed`.

    Raises:
        UsageError: there would be no request, or too many to store.
    """
    count = count_of(rate, duration_s)
    return (float(unit_gaps(count - 1, seed).sum()) / duration_s if count > 1 else rate), count


def unit_gaps(count: int, seed: int) -> np.ndarray:
    """Return the first gaps of a seed at a rate of one."""
    words = np.random.RandomState(seed).randint(0, 2**32, size=2 * count, dtype=np.uint64).astype(np.float64)
    # std::generate_canonical<double, 53>: two 32-bit words, the low one first.
    return -np.log1p(-(words[0::2] + words[1::2] * 2.0**32) / 2.0**64)
