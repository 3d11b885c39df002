"""Yardsticks as rows: the records of a case contain their samples; here they become rows like those of backends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from attnbench.record import Record, Time, Yardstick
from attnbench.verdict.sides import Place, Row

NAME = "yardsticks"
"""Their name for `--reference`."""

PREFIX = "yardstick "
"""Prefix of their names among those of backends."""


def yardstick_rows(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each yardstick that both sides timed beside the rows of a case, with equal work.

    Args:
        rows: of one case.
    """
    names = dict.fromkeys(name for _, _, record in _timed(rows) for name in record.yardsticks)
    found = [_row(name, rows) for name in names]
    return [row for row in found if row is not None]


def label(row: Row) -> str:
    """Return the name of a row's yardstick."""
    return row.key[2].removeprefix(PREFIX)


def _row(name: str, rows: Sequence[Row]) -> Row | None:
    workload, case_id = rows[0].key[:2]
    row = Row((workload, case_id, PREFIX + name, None))
    parts: dict[tuple[int, Place], list[tuple[Record, Yardstick]]] = {}
    for side, (file, replicate, _), record in _timed(rows):
        if name in record.yardsticks:
            parts.setdefault((side, (file, replicate, 0)), []).append((record, record.yardsticks[name]))
    works = {(one.flops, one.bytes) for members in parts.values() for _, one in members}
    if len(works) > 1:  # another version of attnbench has a different yardstick
        return None
    for (side, place), members in parts.items():
        row.sides[side][place] = _record(row.key[2], members)
    return row if all(row.sides) else None


def _record(name: str, members: Sequence[tuple[Record, Yardstick]]) -> Record:
    """Return a record of its samples; a group measured in parts has some in each part."""
    first, _ = members[0]
    samples: dict[int, tuple[float, float | None]] = {}
    for one in {one.rounds: one for _, one in members}.values():  # all rows of one part have the same samples
        clocks = one.sm_mhz or (None,) * len(one.samples_ms)
        samples.update(zip(one.rounds, zip(one.samples_ms, clocks, strict=True), strict=True))
    rounds = tuple(sorted(samples))
    clocks = tuple(samples[number][1] for number in rounds)
    assert first.time is not None  # a record without one has no yardsticks
    time = Time(
        timer=first.time.timer,
        l2=first.time.l2,
        regime=first.time.regime,
        stopped_by=None,
        num_samples=len(rounds),
        median_ms=None,
        mean_ms=None,
        min_ms=None,
        max_ms=None,
        p95_ms=None,
        p99_ms=None,
        tick_ms=first.time.tick_ms,
        samples_ms=tuple(samples[number][0] for number in rounds),
        rounds=rounds,
        sm_mhz=clocks if any(clock is not None for clock in clocks) else (),
    )
    return dataclasses.replace(first, backend=name, config=None, time=time, yardsticks={})


def _timed(rows: Sequence[Row]) -> Iterator[tuple[int, Place, Record]]:
    for row in rows:
        for side in (0, 1):
            for place, record in row.timed(side).items():
                yield side, place, record
