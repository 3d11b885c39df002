"""When a group has been sampled enough.

**What has to be known.**  For one subject, its median; for two or more, the ratio of each to the first.  A
ratio's interval is wider than either time's by a factor of root two if the noise is independent, so the times
are then known too.  If times stay uncertain although the ratios are known, the subjects drift together (a card at its
power limit: 5 to 11 %), and more samples do not help.  The record keeps the times with their own, wide, interval.

**Repeated looks bias.**  A rule that tests after each sample and stops at the first narrow interval stops where the
interval is narrow by chance.  So there are few looks, each with half as many samples again as the one before
(10, 15, 23, 35 …), and an interval counts only if it is narrow at two looks in a row.

**Dependence hides.**  Slow noise changes little within few samples: their interval is narrow and misses
the truth.  A median needs the equivalent of 30 independent samples.  From a ratio, what the subjects share is already
removed, so it is treated as independent until dependence is detected (`dependence`): if the similarity of neighbours
inflates the variance by a factor f, 30 (f - 1) rounds are needed, at both looks.

The coverage at the stop is given in docs/measuring.md for ratios with independent noise, simulated by
`benchmarks/intervals.py`.  For medians, 600 streams each to 1 % and 0.5 %, the share of intervals that
contain the true median is:

    normal, lognormal, two peaks 55/45     0.96 to 0.98
    neighbours correlated 0.5, 0.8, 0.9    0.96, 0.94, 0.93

The slower the drift relative to the sampling, the less of it can be detected from the samples.  White noise that makes
up half of the noise hides the other half: correlated 0.9, coverage is 0.73 to 0.84 for ratios.  Two wider guards were
simulated, 120 streams each of 0.5 % and 1 % (this one had 0.81 and 0.73 on the same).  Summing an autoregression
of 0.9 wherever the correlation of neighbours exceeds 1.64 standard errors gives 0.87 and 0.76, and needs five times
the rounds at a correlation of 0.5.  Student's t over six batches gives 0.85 and 0.83, and needs 1.6 to 2 times the
rounds under white noise.  Neither is worth the cost.  Replicates cover what a whole process has in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.stats.dependence import variance_inflation
from attnbench.stats.ratio import paired_ratio
from attnbench.stats.summary import median_interval, percentile

FEWEST_ROUNDS = 10
"""Rounds at the first look."""

FEWEST_INDEPENDENT = 30
"""Equivalent independent samples that a median needs, and a ratio for each doubling of its variance by dependence."""

GROWTH = 1.5
"""Samples at a look divided by samples at the look before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRule:
    """Decides between rounds whether to continue a group.  Stateless: the samples determine the decision."""

    rel_ci: float = 0.01
    "half the width of the 95 % interval over its centre at which the centre counts as known"
    max_seconds: float = 2.0
    "sampling time of the group; ends sampling after any round"
    iterations: int | None = None
    "exactly this many rounds, regardless of the other two"
    tick: float = 0.0
    "resolution of the timer in the unit of the samples"

    def next_look(self, num_rounds: int) -> int:
        """Return the number of rounds, above `num_rounds`, at which the samples are looked at next."""
        if self.iterations is not None:
            return self.iterations
        look = FEWEST_ROUNDS
        while look <= num_rounds:
            look = math.ceil(look * GROWTH)
        return look

    def decide(self, group: Sequence[Sequence[float]], elapsed_s: float) -> str | None:
        """Return why the group is done, or None to continue; may be called after any round.

        Args:
            group: Samples of each subject by round; the others are compared with the first subject.
            elapsed_s: Sampling time so far.

        Returns:
            "iterations", "rel-ci", "max-seconds" or None.

        Raises:
            ValueError: there is no subject, or a time is not positive and finite.
        """
        rounds = min(map(len, group))
        if self.iterations is not None:
            return "iterations" if rounds >= self.iterations else None
        if self._is_look(rounds) and self._known(group, rounds) and self._known(group, self._look_before(rounds)):
            return "rel-ci"
        return "max-seconds" if elapsed_s >= self.max_seconds else None

    def _is_look(self, rounds: int) -> bool:
        return rounds > FEWEST_ROUNDS and self.next_look(rounds - 1) == rounds

    def _look_before(self, rounds: int) -> int:
        look = FEWEST_ROUNDS
        while self.next_look(look) < rounds:
            look = self.next_look(look)
        return look

    def _known(self, group: Sequence[Sequence[float]], rounds: int) -> bool:
        first = group[0][:rounds]
        if len(group) == 1:
            return self._median_known(first)
        baseline = dict(enumerate(first))
        return all(self._ratio_known(baseline, dict(enumerate(other[:rounds]))) for other in group[1:])

    def _median_known(self, samples: Sequence[float]) -> bool:
        interval = median_interval(samples)
        if interval is None or len(samples) < FEWEST_INDEPENDENT * variance_inflation(samples):
            return False
        # A timer cannot distinguish times that are closer than its tick: more samples change nothing.
        tolerance = max(self.rel_ci * percentile(sorted(samples), 0.5), self.tick / 2.0)
        return (interval[1] - interval[0]) / 2.0 <= tolerance * (1.0 + 1e-9)

    def _ratio_known(self, baseline: dict[int, float], own: dict[int, float]) -> bool:
        estimate = paired_ratio(baseline, own, tick=self.tick)
        if estimate.ci_low is None or estimate.ci_high is None:
            return False
        if estimate.num_pairs < FEWEST_INDEPENDENT * (estimate.inflation - 1.0):
            return False
        return (estimate.ci_high - estimate.ci_low) / 2.0 <= self.rel_ci * estimate.ratio
