"""The spread between processes of the same code, learned from all rows of a diff together.

It is not visible inside one process, because it comes from allocation, placement and heat.  It is learned from
replicates (row by row, shrunk towards the grid: `stats.moderated`) and from unchanged rows (whatever they differ by
is noise); otherwise a declared value is used (`contrast.PROCESS`).

Simulated, 100 diffs per line of 12 cases x 5 backends as benchmarks/diff.py makes them (processes of the same
code up to 1 % apart, drift, two peaks, outliers; a test recomputes part of it): diffs of equal code that
raise any alarm, and the share of 3 % slowdowns that is detected.

    one process per side                                     equal code      3 % detected
    medians, by the intervals of their samples               100 of 100      0.94
    ratio to the references, by its samples                  100 of 100      1.00
    the same, simultaneous intervals of all rows              91 of 100      1.00
    this                                                       0 of 100      1.00

    three processes per side
    ratio to the references, by its samples, simultaneous     84 of 100      1.00
    Student's interval over processes                         94 of 100      1.00
    the same, simultaneous                                     6 of 100      0.62
    this                                                       1 of 100      1.00

With one process per side, changes are detected by a backend's rows together (`together`), since two processes
(`placement`) may differ by as much in a single row.

Samples alone mistake a process's offset for a change.  Intervals over processes, row by row, are valid but, with three
processes per side and sixty rows, detect almost nothing.  Sharing information between rows gives both properties.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.stats.moderated import KEPT_DEGREES, prior_of, trimmed_scale
from attnbench.stats.ratio import RESOLUTION
from attnbench.verdict.contrast import Contrast, Contrasts

DECLARED = 30.0
"""Degrees of freedom of the declared spread while nothing else is known: it is generous, not exact."""

AGAINST_UNCHANGED, OF_REPLICATES = 5.0, 4.0
"""Degrees of freedom that the declared spread has beside those of unchanged rows and of replicates."""


class Noise:
    """Variances of the changes, learned from all rows together."""

    def __init__(self, contrasts: Contrasts, references: Sequence[Sequence[bool]]) -> None:
        flat = [one for rows in contrasts for one in rows if one is not None]
        ratios = [
            (one.spread / one.predicted, one.degrees)
            for one in flat
            if one.spread is not None and one.degrees and not one.blind
        ]
        self.replicated = bool(ratios)
        scale, degrees = prior_of([one for one, _ in ratios], [one for _, one in ratios]) if ratios else (1.0, 0.0)
        self.degrees = degrees + OF_REPLICATES
        self.scale = (OF_REPLICATES + degrees * scale) / self.degrees
        self.factor, self._parts = 1.0, (0.0, 0.0, 0.0)
        self._hear(
            [
                one
                for rows, flags in zip(contrasts, references, strict=True)
                for one, flag in zip(rows, flags, strict=True)
                if flag and one is not None and one.has_reference and not one.is_hopeless
            ],
            _independent(contrasts, references),
        )

    def of(self, one: Contrast) -> tuple[float, float]:
        """Return the variance of the change, and its degrees of freedom."""
        variance, degrees = self._before(one)
        # Two or three samples may lie close together by chance, and other rows do not show this row's noise.
        return max(variance * self.factor, RESOLUTION**2), 1.0 / (1.0 / self._degrees(degrees) + 1.0 / one.shown)

    def _before(self, one: Contrast) -> tuple[float, float]:
        """Return the same before unchanged rows are taken into account."""
        if one.blind and one.spread is not None:
            return one.spread * one.per_process + one.extra, one.degrees
        if not self.replicated:
            return one.predicted * one.per_process + one.extra, DECLARED
        if one.spread is None:
            return max(self.scale, 1.0) * one.predicted * one.per_process + one.extra, self.degrees
        degrees = self.degrees + one.degrees
        multiple = (self.degrees * self.scale + one.degrees * one.spread / one.predicted) / degrees
        return multiple * one.predicted * one.per_process + one.extra, degrees

    def _hear(self, quiet: Sequence[Contrast], freedom: float) -> None:
        """Learn from unchanged rows: whatever they differ by is noise."""
        if freedom <= 0.0 or not quiet:
            return
        seen = trimmed_scale([one.change**2 / self._before(one)[0] for one in quiet])
        # The more they contradict the assumption, the less weight it gets.
        weight = AGAINST_UNCHANGED / max(1.0, seen)
        factor = (weight + freedom * seen) / (weight + freedom)
        # Replicates have measured the spread already, so unchanged rows can only increase it.
        # Nor can rows of other cases, each with its own drift, show that this row has less.
        if factor > 1.0 or not (self.replicated or quiet[0].elsewhere):
            self.factor, self._parts = factor, (weight, freedom * seen, freedom)

    def _degrees(self, own: float) -> float:
        """Return the degrees of freedom of assumption and observation together (Satterthwaite)."""
        assumed, seen, freedom = self._parts
        if not freedom:
            return own
        both = (assumed + seen) ** 2 / (assumed**2 / own + seen**2 / freedom)
        return min(both, own if self.replicated else max(own, assumed + freedom))


def _independent(contrasts: Contrasts, references: Sequence[Sequence[bool]]) -> float:
    """Return the degrees of freedom of the changes of unchanged rows, for `trimmed_scale`."""
    total = 0
    for rows, flags in zip(contrasts, references, strict=True):
        unchanged = [
            one for one, flag in zip(rows, flags, strict=True) if flag and one is not None and one.has_reference
        ]
        total += sum(one.elsewhere for one in unchanged) + max(0, sum(bool(one.references) for one in unchanged) - 1)
    return KEPT_DEGREES * total
