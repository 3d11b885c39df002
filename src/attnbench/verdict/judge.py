"""Verdicts for all rows of a diff at once; docs/comparing.md describes the method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.stats.moderated import each, quantile
from attnbench.stats.ratio import SAME_WITHIN, Verdict
from attnbench.verdict.contrast import Contrast, Contrasts, contrasts_of
from attnbench.verdict.levels import Leveled
from attnbench.verdict.noise import Noise
from attnbench.verdict.placement import PlacementError
from attnbench.verdict.together import Move, Names, moves_of

ALARMS = 0.03
"""Share of diffs of equal code in which any row may be called changed by its own interval.  The documented 5 % hold for
a whole diff and include groups of rows (`together`) and differences between processes (`placement`)."""

TO_UNCHANGED = 0.2
"""Part of it given to the unchanged rows if others changed, because the changed ones are of interest."""

ALIKE = 10.0
"""Odds that a row moved if all rows of its group together are shown to have moved."""

LEAST = math.log1p(SAME_WITHIN)
"""Smaller changes of a row are not reported."""

POWER = 0.95
"""Probability with which the smallest detectable change would have been detected."""


@dataclass(slots=True)
class Judged:
    """Results of one row; logarithms of B over A."""

    verdict: Verdict
    change: float | None = None
    low: float | None = None
    high: float | None = None
    smallest: float | None = None
    relative: float | None = None
    "change of the time as measured, against that of the references"
    references: tuple[int, ...] = ()
    elsewhere: bool = False
    "the references are rows of other cases"
    placement: float = 0.0
    "change that may be a difference between two processes, where each side has one"
    together: Move | None = None
    "common move of the rows of its backend, or of all rows, if this row is called only because of it"


def judge(
    cases: Sequence[Sequence[Leveled]],
    references: Sequence[Sequence[bool]],
    files: tuple[int, int],
    same_within: float,
    names: Names | None = None,
) -> list[list[Judged]]:
    """Judge every row.

    Args:
        cases: from `levels`.
        references: which rows are unchanged; each is judged by the others.
        files: number of run files of each side.
        same_within: largest change that "same" excludes, as a share.
        names: backend of each row; None for a yardstick, which is a reference and gets no verdict.

    Returns:
        In the form of `cases`; `references` of a row are indices within its case.
    """
    names = names or [[""] * len(rows) for rows in cases]
    contrasts = contrasts_of(cases, references, files)
    # Rows beside their references and rows judged across rounds have different noise, so it is learned separately.
    noise = {
        paired: Noise(
            [[one if one and bool(one.references) is paired else None for one in rows] for rows in contrasts],
            references,
        )
        for paired in (False, True)
    }
    confidence = _confidence(contrasts, references, names)
    placement, moves = PlacementError(contrasts, references, names), moves_of(contrasts, names)
    return [
        [
            Judged("unclear")
            if one is None or name is None
            else _verdict(
                one,
                noise[bool(one.references)],
                confidence[flag],
                placement,
                [move for group in (name, None) if (move := moves.get(group)) is not None],
                same_within,
            )
            for one, flag, name in zip(rows, flags, kinds, strict=True)
        ]
        for rows, flags, kinds in zip(contrasts, references, names, strict=True)
    ]


def _confidence(contrasts: Contrasts, references: Sequence[Sequence[bool]], names: Names) -> dict[bool, float]:
    """Return each row's confidence, for unchanged rows and for others, such that all hold simultaneously."""
    counts = {True: 0, False: 0}
    for rows, flags, kinds in zip(contrasts, references, names, strict=True):
        for one, flag, name in zip(rows, flags, kinds, strict=True):
            counts[flag] += one is not None and name is not None and not one.is_hopeless
    shares = {True: TO_UNCHANGED, False: 1.0 - TO_UNCHANGED} if all(counts.values()) else {True: 1.0, False: 1.0}
    return {flag: each(1.0 - shares[flag] * ALARMS, counts[flag]) for flag in counts}


def _verdict(
    one: Contrast, noise: Noise, confidence: float, placement: PlacementError, moves: Sequence[Move], same_within: float
) -> Judged:
    found = Judged(
        "unclear",
        one.change,
        relative=one.relative,
        references=one.references,
        elsewhere=one.elsewhere,
        placement=placement.of(one),
    )
    if one.is_hopeless:
        return found
    variance, degrees = noise.of(one)
    error = math.sqrt(variance)
    reach, power = (quantile(share, degrees) * error for share in ((1.0 + confidence) / 2.0, POWER))
    found.low, found.high = one.change - reach, one.change + reach
    found.smallest = max(reach, found.placement, LEAST) + power
    alone = abs(one.change) > max(LEAST, found.placement) and (found.low > 0.0 or found.high < 0.0)
    found.together = None if alone else next((move for move in moves if _belongs(found, move, variance)), None)
    if alone or found.together:
        found.verdict = _shown(one)
    elif max(abs(one.change) + power, abs(one.relative) if one.has_reference else 0.0) <= same_within:
        found.verdict = "same"
    return found


def _belongs(found: Judged, move: Move, variance: float) -> bool:
    """Return whether a row more likely moved with its group than stayed, given the odds of the group."""
    assert found.change is not None
    assert found.low is not None
    assert found.high is not None
    size, own = abs(move.change), found.change * math.copysign(1.0, move.change)
    apart = found.low > move.high or found.high < move.low
    return move.is_shown and not apart and own > max(0.0, size / 2.0 - variance * math.log(ALIKE) / size)


def _shown(one: Contrast) -> Verdict:
    """Return the verdict on a change shown at one clock, unless the time as measured contradicts it."""
    # If the time shows less than half of a change in cycles, the change came with another clock.
    if one.relative * math.copysign(1.0, one.change) < abs(one.change) / 2.0:
        return "unclear"
    return "slower" if one.change > 0.0 else "faster"
