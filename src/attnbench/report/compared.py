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
"""What may differ between the runs of a page: it is said, and a reader sees both.  Times of two timers, cache states
or regimes have no ratio."""
FIRST = "A"


@dataclass(frozen=True, slots=True)
class Compared:
    """A later run against the first, which is called A."""

    letter: str
    "what it is called: B, C …"
    first: Run
    run: Run
    found: Diff | None
    refusal: str | None
    "why there is no comparison; None where there is one"


def letter(place: int) -> str:
    """What the run at `place` is called: A, B … Z, then run 27."""
    return string.ascii_uppercase[place] if place < len(string.ascii_uppercase) else f"run {place + 1}"


def compare(runs: Sequence[Run]) -> list[Compared]:
    """The comparisons of a page: none for one run.

    Args:
        runs: with their statistics derived, in the order given.
    """
    return [_against(runs[0], run, letter(place)) for place, run in enumerate(runs) if place]


def _against(first: Run, run: Run, name: str) -> Compared:
    try:
        return Compared(name, first, run, diff([first], [run], across=ACROSS), None)
    except UsageError as error:
        return Compared(name, first, run, None, str(error).removeprefix("attnbench diff: "))
