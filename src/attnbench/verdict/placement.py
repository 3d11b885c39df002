"""A limit for one process per side: rows may differ only because two processes differ.

A process does not show its own offsets, and these need not be alike: most rows may be within a few tenths of a per
cent of another process's, and one in twenty 3 % off.  So a row measured by only one process per side is called
changed only when it changed by more than `LEAST`, and by more than a multiple of the largest change of the unchanged
rows of the same diff.  The multiple follows from the tails: where these fall with the power k, the largest of m draws
is more than c times the largest of n others with probability m / (m + n c^k).
"""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.verdict.contrast import Contrast, Contrasts
from attnbench.verdict.together import Names

LEAST = 0.04
"""Possible difference of two processes, whatever the other rows show: among a few dozen rows, none may show it."""

TAILS = 3.0
"""Power with which the tails of the offsets fall, assuming the slowest: that of Student's t with 3 degrees."""

OF_CHANGED, OF_UNCHANGED = 0.012, 0.008
"""Share of diffs of equal code in which a difference of two processes may call a row of changed, or unchanged, code."""

FEWEST = 10
"""Unchanged rows needed to estimate the random change of a row."""

FLOOR = 0.03
"""The same limit for one row where there are fewer; that of the largest of m rows is larger by the k-th root of m.
From Student's t with three degrees and a scale of 0.4 %, exceeded in 1 % of diffs."""


class PlacementError:
    """How much of a row's change may be the difference between two processes."""

    def __init__(self, contrasts: Contrasts, references: Sequence[Sequence[bool]], names: Names) -> None:
        comparable = [
            (one, flag and one.has_reference)
            for rows, flags, kinds in zip(contrasts, references, names, strict=True)
            for one, flag, name in zip(rows, flags, kinds, strict=True)
            if name is not None and one is not None
        ]
        quiet = [one for one, flag in comparable if flag]
        self._rows = set(map(id, quiet))
        self._largest = [*sorted((abs(one.change) for one in quiet), reverse=True)[:2], 0.0, 0.0]
        self._floor = FLOOR * len(comparable) ** (1.0 / TAILS) if len(quiet) <= FEWEST else 0.0
        changed = len(comparable) - len(quiet)
        self._beyond = (changed / max(1, len(quiet)) * (1.0 / OF_CHANGED - 1.0)) ** (1.0 / TAILS)
        self._among = (1.0 / OF_UNCHANGED - 1.0) ** (1.0 / TAILS)

    def of(self, one: Contrast) -> float:
        """Return the change up to which nothing is shown; 0 where a side has several processes to compare."""
        if one.degrees:
            return 0.0
        is_quiet = id(one) in self._rows
        other = self._largest[1 if is_quiet and abs(one.change) == self._largest[0] else 0]
        return max(LEAST, self._floor, other * (self._among if is_quiet else self._beyond))
