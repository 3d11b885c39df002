"""Several runs on one page: each later one compared with the first."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.errors import UsageError
from attnbench.record import Run
from attnbench.verdict.change import Diff
from attnbench.verdict.diff import diff

ACROSS = ("card", "input")
"""Conditions that may differ between the runs of a page; they are shown.  Ratios of times with different timers, cache
states or regimes are not computed."""
FIRST = "A"


@dataclass(frozen=True, slots=True)
class Compared:
    """A later run compared with the first, which is called A."""

    letter: str
    "its name: B, C …"
    first: Run
    run: Run
    found: Diff | None
    refusal: str | None
    "why there is no comparison; None if there is one"


def letter(place: int) -> str:
    """Return the name of the run at `place`: A, B … Z, then run 27."""
    return string.ascii_uppercase[place] if place < len(string.ascii_uppercase) else f"run {place + 1}"


def compare(runs: Sequence[Run]) -> list[Compared]:
    """Return the comparisons of a page: none for one run.

    Args:
        runs: with their statistics derived, in the order given.
    """
    return [_against(runs[0], run, letter(place)) for place, run in enumerate(runs) if place]


def _against(first: Run, run: Run, name: str) -> Compared:
    try:
        return Compared(name, first, run, diff([first], [run], across=ACROSS), None)
    except UsageError as error:
        return Compared(name, first, run, None, str(error).removeprefix("attnbench diff: "))
