"""The result of a diff: a verdict for every row in both sides, and the rows in only one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from attnbench.record import Record, Status
from attnbench.stats.ratio import Verdict

Cause = Literal["code", "machine", "unknown"]
"""Cause of a shift of all rows; unknown: there are no yardsticks, or they are inconclusive."""

RowKey = tuple[str, str, str, str | None]
"""Workload, case id, backend, configuration: the key that pairs a row of A with one of B."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row in both sides.  Changes are shares of A's time: +0.03 means 3 % slower in B."""

    a: Record
    "of the first process of A; all records of a row have the same case"
    b: Record
    verdict: Verdict
    change: float | None
    "at the same clock, against the references; None where neither side has enough samples"
    low: float | None
    "interval; the intervals of all rows of a diff hold simultaneously with 95 %"
    high: float | None
    smallest: float | None
    "change that would have been detected with 95 % probability"
    a_ms: float
    "median over the processes of their medians"
    b_ms: float
    time_change: float
    "of the times as measured, including changes of machine and clock"
    clock_change: float | None
    "of the SM clock; None where it was not read in both sides"
    cycles_change: float | None
    memory_change_mb: float | None
    processes: tuple[int, int]
    references: tuple[str, ...]
    "unchanged backends and yardsticks, whose changes are subtracted; empty: the time itself is judged"
    remark: str | None = None
    "what a reader must know to interpret the verdict"

    @property
    def key(self) -> RowKey:
        """The key that paired the two."""
        return key_of(self.a)


@dataclass(frozen=True, slots=True)
class Turned:
    """A row with another status in B than in A."""

    a: Record
    b: Record

    @property
    def is_regression(self) -> bool:
        """It passed in A, and in B is incorrect, out of memory, timed out, crashed or failed."""
        return self.a.status is Status.PASSED and self.b.status not in (Status.PASSED, Status.SKIPPED)


@dataclass(frozen=True, slots=True)
class Shift:
    """A common change of all rows.  Changes are shares of A's time: +0.03 means 3 % slower in B."""

    cause: Cause
    change: float
    "cause code: against the yardsticks; otherwise of the times as measured"
    low: float | None
    high: float | None
    "interval of `change`; None where each row shows the change by itself, and for times as measured"
    time_change: float
    "median change of the times as measured"
    yardsticks: Mapping[str, float]
    "change of each of them"
    clock_change: float | None
    "of the SM clock"
    shown: bool
    "larger than the difference of two runs of the same code"


@dataclass(frozen=True, slots=True)
class Diff:
    """Comparison of two groups of runs."""

    a_ids: tuple[str, ...]
    b_ids: tuple[str, ...]
    shift: Shift | None
    "common change of all rows; None where they did not change together"
    changes: tuple[Change, ...]
    "in the order of A"
    turned: tuple[Turned, ...]
    untimed: tuple[Record, ...]
    "rows of A with the same status in B, but without a time in both sides"
    removed: tuple[Record, ...]
    "only in A"
    added: tuple[Record, ...]
    notes: tuple[str, ...]
    machines: tuple[str, ...]
    "machine and versions, and their differences between the sides"
    same_within: float
    elsewhere: tuple[Record, ...] = ()
    "rows of A that another GPU measured in B: two GPUs of one model differ by percents, so there is no verdict"

    def slower_than(self, share: float) -> list[Change]:
        """Return the rows shown to be slower, by more than `share`.

        Shown: the whole interval, which holds for all rows simultaneously, lies above 0.  By more: the estimate
        exceeds `share`.  A slowdown just over `share` thus counts once it is detected at all, not only when it
        certainly exceeds `share`.
        """
        return [
            one for one in self.changes if one.verdict == "slower" and one.change is not None and one.change > share
        ]

    def is_slower_throughout(self, share: float, *, machine_may_move: bool = False) -> bool:
        """Return whether all rows together are shown to be slower by more than `share`.

        Args:
            share: of A's time.
            machine_may_move: only changes caused by the code count.
        """
        one = self.shift
        return one is not None and one.shown and one.change > share and (one.cause == "code" or not machine_may_move)

    @property
    def has_judged(self) -> bool:
        """Return whether any row, or all rows together, got a verdict."""
        return (
            bool(self.turned)
            or any(one.verdict != "unclear" for one in self.changes)
            or (self.shift is not None and self.shift.shown)
        )

    def regressions(self) -> list[Turned]:
        """Return the rows that passed in A and failed in B."""
        return [one for one in self.turned if one.is_regression]


def key_of(record: Record) -> RowKey:
    """Return the key that pairs this row with one of another run."""
    return record.workload, record.case_id, record.backend, record.config
