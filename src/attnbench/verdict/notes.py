"""What a reader of a diff must know beside the numbers: remarks on rows, notes on the whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from attnbench.record import Run
from attnbench.verdict.change import Change, Shift
from attnbench.verdict.contrast import FEWEST_ELSEWHERE, MACHINE, PROCESS, clock_change
from attnbench.verdict.judge import Judged
from attnbench.verdict.levels import Leveled
from attnbench.verdict.sides import Row
from attnbench.verdict.yardsticks import PREFIX

MOVED_APART = 0.01
"""If time and cycles changed by amounts further apart than this, both are printed."""

MORE = "`--replicates 3`, or more files per side,"


def remark_of(row: Row, judged: Judged, time: float, clock: float | None) -> str | None:
    """Return what a reader must know to interpret one verdict.

    Args:
        row: with its records.
        judged: the verdict.
        time: logarithm of the time in B over that in A, as measured.
        clock: the same for the SM clock.
    """
    words = [*_on_what(row, judged), *_on_clock(time, clock)]
    return "; ".join(words) or None


def _on_what(row: Row, judged: Judged) -> Iterator[str]:
    """Yield what a verdict is based on, where that is little."""
    if judged.low is None or judged.high is None or judged.change is None:
        yield "one process per side and fewer than three samples: the spread between processes is unknown"
        return
    figures = [time for side in (0, 1) for one in row.timed(side).values() if (time := one.time)]
    if not all(one.samples_ms for one in figures):
        what = "medians" if all(one.samples_ms or one.median_ms for one in figures) else "means"
        yield f"based on {what} from another program's file, without samples: their spread is assumed"
    if judged.together is not None and judged.verdict in ("slower", "faster"):
        yield (
            f"one of the rows that moved together, by {percent(judged.together.change)} over "
            f"{judged.together.cases} cases; alone it would be unclear"
        )
    elif (
        judged.verdict == "unclear"
        and abs(judged.change) <= judged.placement
        and (judged.low > 0.0 or judged.high < 0.0)
    ):
        yield (
            f"{percent(judged.change)} with one process per side may be the difference between two processes; "
            f"{MORE} would tell"
        )


def _on_clock(time: float, clock: float | None) -> Iterator[str]:
    if clock is None or abs(clock) < MOVED_APART:
        return
    cycles = time + clock
    words = f"clock {percent(clock)}, time {percent(time)}, cycles {percent(cycles)}"
    if abs(cycles) < MOVED_APART:
        yield f"{'slower' if clock < 0 else 'faster'} clock, same cycles ({words})"
    else:
        yield f"other clock, same time ({words})" if abs(time) < MOVED_APART else words


def notes_of(
    changes: Sequence[Change],
    runs: tuple[Sequence[Run], Sequence[Run]],
    cases: Sequence[Sequence[Row]],
    chosen: Sequence[Sequence[bool]],
    flags: Sequence[Sequence[bool]],
    leveled: Sequence[Sequence[Leveled]],
    shift: Shift | None,
    *,
    may_cross: bool,
) -> Iterator[str]:
    """Yield the notes on the whole diff.

    Args:
        changes: of the rows.
        runs: of both sides.
        cases: rows, including yardsticks.
        chosen: references by source, or by name.
        flags: those of them that were used.
        leveled: levels of all rows.
        shift: of all rows together.
        may_cross: rows of two GPUs are compared.
    """
    alone = sum(min(one.processes) < 2 for one in changes)
    if alone:
        yield (
            f"{_of(alone, len(changes))} measured by only one process on a side: a spread of {100 * PROCESS:g} % "
            f"between processes is assumed where unchanged rows do not show it; {MORE} would measure it"
        )
    bare = sum(not one.references for one in changes)
    if bare:
        yield (
            f"{_of(bare, len(changes))} with no unchanged backend and no yardstick beside: the change of the machine "
            f"is taken from unchanged rows of other cases, or assumed as {100 * MACHINE:g} % per run where there are "
            f"fewer than {FEWEST_ELSEWHERE}"
        )
    if [list(one) for one in chosen] != [list(one) for one in flags]:
        yield (
            "backends of the same version and source moved against the yardsticks: all rows are judged against the "
            "yardsticks alone"
        )
    shifts = [
        side
        for rows, found, unchanged in zip(cases, leveled, flags, strict=True)
        for side in [_shift(found, unchanged)]
        if side is not None
    ]
    if shift is None and shifts and abs(median(shifts)) > MOVED_APART:
        yield (
            f"unchanged backends and yardsticks took {percent(median(shifts))} in B: a change of the machine, "
            "subtracted from the changes but not from the times"
        )
    clocks = [moved for found in leveled for one in found if (moved := clock_change(one)) is not None]
    if clocks and abs(median(clocks)) > MOVED_APART:
        yield f"the SM clock differed by {percent(median(clocks))} in B: changes are given at the same clock"
    changed = sorted(
        {
            row.key[2]
            for rows, chosen_rows in zip(cases, flags, strict=True)
            for row, flag in zip(rows, chosen_rows, strict=True)
            if flag and not row.key[2].startswith(PREFIX) and not row.stayed()
        }
    )
    if changed:
        yield f"{', '.join(changed)}: named as reference, but its version or source differs in B or is unknown"
    yield from _other_machine(*runs, may_cross=may_cross)


def _other_machine(a: Sequence[Run], b: Sequence[Run], *, may_cross: bool) -> Iterator[str]:
    cards, tools = (
        [{getattr(one, name) for run in runs for one in run.environments} for runs in (a, b)]
        for name in ("gpu_uuid", "triton")
    )
    torches = [{one.torch for run in runs for one in run.environments} for runs in (a, b)]
    if torches[0] != torches[1]:
        yield "different torch: its matmul, a yardstick, may differ too"
    if may_cross and cards[0] != cards[1]:
        yield "different card: two of one model differ by percents, which only a reference corrects"
    if tools[0] != tools[1]:
        yield "different Triton: it may compile references differently, although their sources are unchanged"


def _shift(found: Sequence[Leveled], unchanged: Sequence[bool]) -> float | None:
    middles = [
        [median(level.raw for level in side.values()) for side in one.sides]
        for one, flag in zip(found, unchanged, strict=True)
        if flag
    ]
    shifts = [b - a for a, b in middles]
    return median(shifts) if shifts else None


def percent(log: float) -> str:
    """Format a change, given as a logarithm, in per cent."""
    return f"{100 * math.expm1(log):+.1f} %"


def _of(count: int, total: int) -> str:
    return f"{count} of {total} rows" if count < total else "all rows" if total > 1 else "the row"
