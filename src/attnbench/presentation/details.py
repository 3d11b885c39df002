"""Tables in addition to the main one: serving and generation, predicted maps, each timer, each phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnbench.presentation import figures
from attnbench.presentation.block import Block, Column, Line, backend_name, filled
from attnbench.presentation.conditions import conditions_of
from attnbench.presentation.reconcile import reconciled
from attnbench.presentation.serving import growth, serving, steps_of
from attnbench.presentation.sparse import maps
from attnbench.presentation.video import video
from attnbench.record import Record, Run, Time


def details(run: Run, title: str, records: Sequence[Record]) -> list[Block]:
    """Return the additional tables of a case: serving, generation, predicted maps, `--timer all` and phases."""
    baseline = run.settings.baseline
    return [
        *serving(title, records),
        *growth(title, records),
        *maps(title, records),
        *video(title, records, baseline),
        *reconciled(title, records, baseline),
        *_timers(run, title, records),
        *_phases(run, title, records),
    ]


def _timers(run: Run, title: str, records: Sequence[Record]) -> list[Block]:
    names = list(dict.fromkeys(name for record in records for name in record.timers))
    if len(names) < 2:
        return []
    unit = _unit([time for record in records for time in record.timers.values()])
    lines = []
    for record in records:
        cells = {"backend": backend_name(record)}
        for name, time in record.timers.items():
            cells |= _figure(name, time, unit)
        lines.append(Line(record, cells))
    columns = [Column("backend", f"by timer, {unit.name}", 0, number=False)]
    for rank, name in enumerate(names):
        columns += [Column(name, name, rank), Column(f"{name} margin", "95 %", rank + len(names))]
    return [Block(title, None, filled(columns, lines), lines)]


def _phases(run: Run, title: str, records: Sequence[Record]) -> list[Block]:
    parted = [record for record in records if not steps_of(record)]
    timed = [(record, name, time) for record in parted for name, time in record.phases.items()]
    if not timed:
        return []
    unit = _unit([time for _, _, time in timed])
    lines = [Line(record, {"backend": backend_name(record), "phase": name, **_figure("median", time, unit)})
             for record, name, time in timed]  # fmt: skip
    columns = [
        Column("backend", "backend", 0, number=False),
        Column("phase", "phase", 0, number=False),
        Column("median", f"median {unit.name}", 0),
        Column("median margin", "95 %", 1),
    ]
    # Phases may have another timer than the rows above: wall-clock times include launching and waiting.
    conditions = replace(
        conditions_of(run, [timed[0][0]]), timer=", ".join(dict.fromkeys(time.timer for *_, time in timed))
    )
    return [Block(title, conditions, filled(columns, lines), lines, part="phases")]


def _figure(name: str, time: Time, unit: figures.Unit) -> dict[str, str]:
    half, median = figures.time_half(time), time.median_ms
    median, half = (unit.of(value) for value in (median, half))
    return {name: figures.measured(median, half), f"{name} margin": figures.interval(time, unit)}


def _unit(times: Sequence[Time]) -> figures.Unit:
    return figures.unit_for(time.median_ms for time in times if time.median_ms is not None)
