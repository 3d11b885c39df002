"""What a diff says: a verdict for every row in both, and what is in one side only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from attnbench.record import Record, Status
from attnbench.stats.ratio import Verdict

Cause = Literal["code", "machine", "unknown"]
"""Of a shift of all rows; unknown: there are no yardsticks, or they do not tell."""

RowKey = tuple[str, str, str, str | None]
"""Workload, case id, backend, configuration: what pairs a row of A with one of B."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row in both sides.  Changes are shares of A's time: +0.03 is 3 % slower in B."""

    a: Record
    "of the first process of A; of the group of a row all have the same case"
    b: Record
    verdict: Verdict
    change: float | None
    "at the same clock, against the references; None where neither side has a sample that tells"
    low: float | None
    "interval; those of all rows of a diff hold together with 95 %"
    high: float | None
    smallest: float | None
    "change that would have been called with 95 % probability"
    a_ms: float
    "median over processes of their medians"
    b_ms: float
    time_change: float
    "of the times as they are, machine and clock included"
    clock_change: float | None
    "of the SM clock; None where it was not read on both sides"
    cycles_change: float | None
    memory_change_mb: float | None
    processes: tuple[int, int]
    references: tuple[str, ...]
    "backends that stayed the same and yardsticks, whose changes are taken out; empty: the time itself is judged"
    remark: str | None = None
    "what a reader of the verdict must know"

    @property
    def key(self) -> RowKey:
        """What paired the two."""
        return key_of(self.a)


@dataclass(frozen=True, slots=True)
class Turned:
    """A row that ended otherwise in B."""

    a: Record
    b: Record

    @property
    def is_regression(self) -> bool:
        """It passed, and is now wrong, out of memory, too slow to end, crashed or failed."""
        return self.a.status is Status.PASSED and self.b.status not in (Status.PASSED, Status.SKIPPED)


@dataclass(frozen=True, slots=True)
class Shift:
    """What all rows changed by together.  Changes are shares of A's time: +0.03 is 3 % slower in B."""

    cause: Cause
    change: float
    "code: against the yardsticks; else of the times as they are"
    low: float | None
    high: float | None
    "interval of the first; None where the rows show it one by one, and of the times as they are"
    time_change: float
    "median of the times as they are"
    yardsticks: Mapping[str, float]
    "what each of them changed by"
    clock_change: float | None
    "of the SM clock"
    shown: bool
    "beyond what two runs of the same code differ by"


@dataclass(frozen=True, slots=True)
class Diff:
    """Two groups of runs compared."""

    a_ids: tuple[str, ...]
    b_ids: tuple[str, ...]
    shift: Shift | None
    "of all rows together; None where they did not move together"
    changes: tuple[Change, ...]
    "in the order of A"
    turned: tuple[Turned, ...]
    untimed: tuple[Record, ...]
    "rows of A that ended alike in B, without a time on both sides"
    removed: tuple[Record, ...]
    "only in A"
    added: tuple[Record, ...]
    notes: tuple[str, ...]
    machines: tuple[str, ...]
    "machine and versions, and what of them differs between the sides"
    same_within: float
    elsewhere: tuple[Record, ...] = ()
    "rows of A that another GPU measured in B: two of one model differ by percents, so there is no verdict"

    def slower_than(self, share: float) -> list[Change]:
        """Rows shown slower, by more than `share`.

        Shown: the whole interval, which holds for all rows together, lies above 0.  By more: the estimate
        does.  A slowdown just over `share` thus counts once it is seen at all, not only when it is beyond doubt
        that it exceeds it.
        """
        return [
            one for one in self.changes if one.verdict == "slower" and one.change is not None and one.change > share
        ]

    def is_slower_throughout(self, share: float, *, machine_may_move: bool = False) -> bool:
        """Whether all rows together are shown slower by more than `share`.

        Args:
            share: of A's time.
            machine_may_move: only what is the code's counts.
        """
        one = self.shift
        return one is not None and one.shown and one.change > share and (one.cause == "code" or not machine_may_move)

    @property
    def has_judged(self) -> bool:
        """Whether any row, or all together, got a verdict."""
        return (
            bool(self.turned)
            or any(one.verdict != "unclear" for one in self.changes)
            or (self.shift is not None and self.shift.shown)
        )

    def regressions(self) -> list[Turned]:
        """Rows that passed in A and did not end well in B."""
        return [one for one in self.turned if one.is_regression]


def key_of(record: Record) -> RowKey:
    """What pairs this row with one of another run."""
    return record.workload, record.case_id, record.backend, record.config
