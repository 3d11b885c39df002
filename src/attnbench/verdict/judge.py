"""Verdicts for all rows of a diff at once.  docs/comparing.md says in words what is done here."""

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
"""Share of diffs of equal code in which any row may be called changed by its own interval.  5 % are promised of a whole
diff, in which groups of rows (`together`) and differences of processes (`placement`) have their part."""

TO_UNCHANGED = 0.2
"""Part of that which the rows that stayed the same have, where others did not: those are what is asked about."""

ALIKE = 10.0
"""Odds that a row moved where all rows of its group together are shown to have moved."""

LEAST = math.log1p(SAME_WITHIN)
"""Smaller changes of a row are not called."""

POWER = 0.95
"""Probability with which the smallest change that is printed would have been called."""


@dataclass(slots=True)
class Judged:
    """The numbers of one row; logarithms of B over A."""

    verdict: Verdict
    change: float | None = None
    low: float | None = None
    high: float | None = None
    smallest: float | None = None
    relative: float | None = None
    "change of the time as it is, against the references' as it is"
    references: tuple[int, ...] = ()
    elsewhere: bool = False
    "the references are rows of other cases"
    placement: float = 0.0
    "change that may be the difference of two processes, where each side has one"
    together: Move | None = None
    "of the rows of its backend, or of all rows, where they show what this one could not alone"


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
        references: which rows stayed the same; each is judged by the others.
        files: number of run files of each side.
        same_within: change that "same" rules out, as a share.
        names: backend of each row, None for a yardstick, which is held on to and gets no verdict of its own.

    Returns:
        As `cases`; `references` of a row are places within its case.
    """
    names = names or [[""] * len(rows) for rows in cases]
    contrasts = contrasts_of(cases, references, files)
    # A row beside its references and one judged across rounds differ by other things: neither teaches the other.
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
    """Confidence of each row's interval, of unchanged rows and of the others, for all to hold together."""
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
    """Whether a row moved as the rows of a group did: as likely as that it stayed, the odds of the group counted."""
    assert found.change is not None
    assert found.low is not None
    assert found.high is not None
    size, own = abs(move.change), found.change * math.copysign(1.0, move.change)
    apart = found.low > move.high or found.high < move.low
    return move.is_shown and not apart and own > max(0.0, size / 2.0 - variance * math.log(ALIKE) / size)


def _shown(one: Contrast) -> Verdict:
    """The verdict on a change that is shown at one clock: not contradicted by the time as it is."""
    # A change in cycles that the time does not show to half its size came with another clock.
    if one.relative * math.copysign(1.0, one.change) < abs(one.change) / 2.0:
        return "unclear"
    return "slower" if one.change > 0.0 else "faster"
