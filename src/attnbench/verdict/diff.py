"""Two groups of runs compared: the rows of both, judged, and what is only in one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from statistics import median

from attnbench.errors import UsageError, refusal, unknown
from attnbench.record import Environment, Run
from attnbench.store.conditions import environment_of, machine_words
from attnbench.verdict.change import Change, Diff
from attnbench.verdict.contrast import FEWEST_ELSEWHERE, MACHINE, PROCESS, clock_change
from attnbench.verdict.judge import Judged, judge
from attnbench.verdict.levels import Leveled, levels
from attnbench.verdict.sides import WHO, Row, lay_out, turned_of

SAME_WITHIN = 0.03
"""Change that "same" rules out, unless told otherwise."""

MOVED_APART = 0.01
"""Time and cycles that changed by amounts further apart are both said."""

WIDEST = 20.0
"""Logarithm beyond which an end of an interval says only that nothing is known."""


def diff(a: Sequence[Run], b: Sequence[Run], *, references: Sequence[str] | None = None,
         across: Collection[str] = (), same_within: float = SAME_WITHIN) -> Diff:
    """Compare B with A.

    Args:
        a: runs of one side, at least one; every file and every replicate in it is a process of its own.
        b: runs of the other.
        references: backends whose changes count as the machine's; None for those that stayed the same, empty for
            none: the times themselves are judged.
        across: conditions (`sides.ACROSS`) that may differ.
        same_within: change, as a share, that "same" rules out.

    Raises:
        UsageError: nothing is in common, times were not taken alike, or a reference is not there.
    """
    rows = lay_out(a, b, across)
    cases = _by_case(row for row in rows if row.timed(0) and row.timed(1))
    flags = _flags(cases, references)
    leveled = levels(cases, flags)
    judged = judge(leveled, flags, (len(a), len(b)), math.log1p(same_within))
    changes = [_change(*one, case) for case, found, verdicts in zip(cases, leveled, judged, strict=True)
               for one in zip(case, found, verdicts, strict=True)]
    order = {row.key: place for place, row in enumerate(rows)}
    changes.sort(key=lambda one: order[one.key])
    return Diff(
        a_ids=tuple(run.id for run in a), b_ids=tuple(run.id for run in b), changes=tuple(changes),
        turned=tuple(turned_of(rows)),
        untimed=tuple(row.first(0) for row in rows if all(row.sides) and row.status(0) is row.status(1)
                      and not (row.timed(0) and row.timed(1))),
        removed=tuple(row.first(0) for row in rows if not row.sides[1]),
        added=tuple(row.first(1) for row in rows if not row.sides[0]),
        notes=tuple(_notes(changes, a, b, cases, flags, leveled)), machines=tuple(_machines(a, b)),
        same_within=same_within)


def _by_case(rows: Iterable[Row]) -> list[list[Row]]:
    cases: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        cases.setdefault(row.key[:2], []).append(row)
    return list(cases.values())


def _flags(cases: Sequence[Sequence[Row]], references: Sequence[str] | None) -> list[list[bool]]:
    """Which rows stand for the machine."""
    if references is None:
        return [[row.stayed() for row in rows] for rows in cases]
    there = {row.key[2] for rows in cases for row in rows}
    for name in references:
        if name not in there:
            raise unknown(WHO, "--reference", name, there) if there else UsageError(
                refusal(WHO, "--reference", name, "has no time in both runs", "a backend of both"))
    return [[row.key[2] in references for row in rows] for rows in cases]


def _change(row: Row, leveled: Leveled, judged: Judged, case: Sequence[Row]) -> Change:
    logs = [median(level.raw for level in side.values()) for side in leveled.sides]
    time, clock = logs[1] - logs[0], clock_change(leveled)
    cycles = None if clock is None else time + clock
    peaks = [_peak(row, side) for side in (0, 1)]
    return Change(
        a=next(iter(row.timed(0).values())), b=next(iter(row.timed(1).values())), verdict=judged.verdict,
        change=_share(judged.change), low=_share(judged.low), high=_share(judged.high),
        smallest=_share(judged.smallest),
        a_ms=math.exp(logs[0]), b_ms=math.exp(logs[1]), time_change=math.expm1(time), clock_change=_share(clock),
        cycles_change=_share(cycles),
        memory_change_mb=None if peaks[0] is None or peaks[1] is None else peaks[1] - peaks[0],
        processes=(len(row.timed(0)), len(row.timed(1))),
        references=tuple(case[one].key[2] for one in judged.references),
        remark=_remark(judged, time, cycles, clock))


def _remark(judged: Judged, time: float, cycles: float | None, clock: float | None) -> str | None:
    if judged.low is None:
        return "one process a side and fewer than three samples: nothing says how far apart two processes lie"
    if clock is None or cycles is None or abs(clock) < MOVED_APART:
        return None
    words = f"clock {_percent(clock)}, time {_percent(time)}, cycles {_percent(cycles)}"
    if abs(cycles) < MOVED_APART:
        return f"{'slower' if clock < 0 else 'faster'} clock, same cycles ({words})"
    return f"other clock, same time ({words})" if abs(time) < MOVED_APART else words


def _notes(changes: Sequence[Change], a: Sequence[Run], b: Sequence[Run], cases: Sequence[Sequence[Row]],
           flags: Sequence[Sequence[bool]], leveled: Sequence[Sequence[Leveled]]) -> Iterator[str]:
    alone = sum(min(one.processes) < 2 for one in changes)
    if alone:
        yield (f"{_of(alone, len(changes))} measured by one process on a side: {100 * PROCESS:g} % from process to "
               "process is assumed where unchanged rows do not show what it is; `--replicates 3`, or more files a "
               "side, would measure it")
    bare = sum(not one.references for one in changes)
    if bare:
        yield (f"{_of(bare, len(changes))} with no unchanged backend beside: the machine is what unchanged rows of "
               f"other cases show, and {100 * MACHINE:g} % off a run where there are fewer than {FEWEST_ELSEWHERE}")
    shifts = [side for rows, found, told in zip(cases, leveled, flags, strict=True)
              for side in [_shift(found, told)] if side is not None]
    if shifts and abs(median(shifts)) > MOVED_APART:
        yield (f"what stayed the same took {_percent(median(shifts))} in B against A: the machine's doing, taken out "
               "of the changes, not of the times")
    clocks = [moved for found in leveled for one in found if (moved := clock_change(one)) is not None]
    if clocks and abs(median(clocks)) > MOVED_APART:
        yield f"the SM clock differed by {_percent(median(clocks))} in B: changes are those at one clock"
    changed = sorted({row.key[2] for rows, told in zip(cases, flags, strict=True)
                      for row, flag in zip(rows, told, strict=True) if flag and not row.stayed()})
    if changed:
        yield f"{', '.join(changed)}: named as reference, though its version or source is another in B, or not known"
    yield from _other_machine(a, b)


def _other_machine(a: Sequence[Run], b: Sequence[Run]) -> Iterator[str]:
    cards, tools = ([{getattr(one, name) for run in runs for one in run.environments} for runs in (a, b)]
                    for name in ("gpu_uuid", "triton"))
    if cards[0] != cards[1]:
        yield "another card: two of one model differ by percents, and only a reference takes that out"
    if tools[0] != tools[1]:
        yield "another Triton: what it compiles may have changed in references too, though their sources did not"


def _shift(found: Sequence[Leveled], told: Sequence[bool]) -> float | None:
    middles = [[median(level.raw for level in side.values()) for side in one.sides]
               for one, flag in zip(found, told, strict=True) if flag]
    shifts = [b - a for a, b in middles]
    return median(shifts) if shifts else None


def _machines(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    sides = [" / ".join(dict.fromkeys(" · ".join(machine_words(one)) for one in _environments(runs)))
             for runs in (a, b)]
    if sides[0] == sides[1]:
        return [sides[0]] if sides[0] else []
    return [f"{name} {words}" for name, words in zip(("A", "B"), sides, strict=True)]


def _environments(runs: Sequence[Run]) -> list[Environment]:
    """Those that records were measured in, in order."""
    measured = [(run, {record.environment: record for record in run.records}.values()) for run in runs]
    return [one for run, records in measured for record in records if (one := environment_of(run, record))]


def _peak(row: Row, side: int) -> float | None:
    peaks = [record.memory.peak_allocated_mb for record in row.timed(side).values() if record.memory]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known else None


def _share(log: float | None) -> float | None:
    return None if log is None or math.isnan(log) else math.expm1(min(log, WIDEST))


def _percent(log: float) -> str:
    return f"{100 * math.expm1(log):+.1f} %"


def _of(count: int, total: int) -> str:
    return f"{count} of {total} rows" if count < total else "all rows" if total > 1 else "the row"
