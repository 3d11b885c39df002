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

ALARMS = 0.05
"""Share of diffs of equal code in which any row may be called changed."""

TO_UNCHANGED = 0.2
"""Part of that which the rows that stayed the same have, where others did not: those are what is asked about."""

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


def judge(cases: Sequence[Sequence[Leveled]], references: Sequence[Sequence[bool]], files: tuple[int, int],
          same_within: float) -> list[list[Judged]]:
    """Judge every row.

    Args:
        cases: from `levels`.
        references: which rows stayed the same; each is judged by the others.
        files: number of run files of each side.
        same_within: change that "same" rules out, as a share.

    Returns:
        As `cases`; `references` of a row are places within its case.
    """
    contrasts = contrasts_of(cases, references, files)
    # A row beside its references and one judged across rounds differ by other things: neither teaches the other.
    noise = {paired: Noise([[one if one and bool(one.references) is paired else None for one in rows]
                             for rows in contrasts], references) for paired in (False, True)}
    confidence = _confidence(contrasts, references)
    return [[Judged("unclear") if one is None else
             _verdict(one, noise[bool(one.references)], confidence[flag], same_within)
             for one, flag in zip(rows, flags, strict=True)]
            for rows, flags in zip(contrasts, references, strict=True)]


def _confidence(contrasts: Contrasts, references: Sequence[Sequence[bool]]) -> dict[bool, float]:
    """Confidence of each row's interval, of unchanged rows and of the others, for all to hold together."""
    counts = {True: 0, False: 0}
    for rows, flags in zip(contrasts, references, strict=True):
        for one, flag in zip(rows, flags, strict=True):
            counts[flag] += one is not None and not one.is_hopeless
    shares = {True: TO_UNCHANGED, False: 1.0 - TO_UNCHANGED} if all(counts.values()) else {True: 1.0, False: 1.0}
    return {flag: each(1.0 - shares[flag] * ALARMS, counts[flag]) for flag in counts}


def _verdict(one: Contrast, noise: Noise, confidence: float, same_within: float) -> Judged:
    found = Judged("unclear", one.change, relative=one.relative, references=one.references, elsewhere=one.elsewhere)
    if one.is_hopeless:
        return found
    variance, degrees = noise.of(one)
    error = math.sqrt(variance)
    reach, power = (quantile(share, degrees) * error for share in ((1.0 + confidence) / 2.0, POWER))
    found.low, found.high = one.change - reach, one.change + reach
    found.smallest = max(reach, math.log1p(SAME_WITHIN)) + power
    found.verdict = _read(one, found.low, found.high, abs(one.change) + power, same_within)
    return found


def _read(one: Contrast, low: float, high: float, reach: float, same_within: float) -> Verdict:
    """The verdict on a row: shown at one clock, and not contradicted by the time as it is."""
    least, most = -math.log1p(SAME_WITHIN), math.log1p(SAME_WITHIN)
    if (low > 0.0 and one.change > most) or (high < 0.0 and one.change < least):
        # A change in cycles that the time does not show to half its size came with another clock.
        if one.relative * math.copysign(1.0, one.change) < abs(one.change) / 2.0:
            return "unclear"
        return "slower" if one.change > 0.0 else "faster"
    return "same" if max(reach, abs(one.relative) if one.has_reference else 0.0) <= same_within else "unclear"
