"""A run arranged for reading: one block a case, texts in cells, notes under it.  No ink of any kind.

The terminal table and the GitHub table are two ways to put these blocks on a page.  A block holds
one case by one timer, cache state and regime on one machine: columns never mix them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from attnbench.presentation import figures
from attnbench.presentation.block import Block, Column, Line, Lost, Page, backend_name, said
from attnbench.presentation.conditions import conditions_of
from attnbench.presentation.details import details
from attnbench.presentation.reading import read_sweep, read_table
from attnbench.presentation.remarks import remarks
from attnbench.record import Record, Run, Status, Time
from attnbench.store.replicates import Processes, by_backend, case_of, combine, is_replicated

FASTEST = "*"
MOST_BLOCKS = 40
"More tables than that are not read: their lines go into one."
GAPS_WORTH_SAYING = 0.02
"Share of the span with no kernel running, above which the busy time is shown."


def arrange(run: Run, most_blocks: int = MOST_BLOCKS) -> Page:
    """A block a case, or, beyond `most_blocks` of them, a line a case and backend."""
    found = blocks(run)
    if len(found) > most_blocks:
        return Page(sweep(run), lost_of(run.records))
    return Page(found, lost_everywhere(run))


def blocks(run: Run) -> list[Block]:
    """One block for each case and way of measuring, in the order of the run."""
    everywhere = {(item.backend, item.status, item.reason) for item in lost_everywhere(run)}
    replicated, found = is_replicated(run), []
    for records in _groups(run):
        lost = [item for item in lost_of(records, say_where=False)
                if (item.backend, item.status, item.reason) not in everywhere]  # fmt: skip
        title, timed = records[0].case_id, [item for item in records if item.time]
        tables = _tables(run, records, replicated)
        tables += details(run, title, combine(timed) if replicated else timed)
        if lost and not tables:
            tables = [Block(title, None)]
        if lost:
            tables[-1] = dataclasses.replace(tables[-1], lost=lost)
        found += tables
    return found


def sweep(run: Run) -> list[Block]:
    """One block for each way of measuring, with a line for each case and backend: for many cases."""
    by_conditions: dict[tuple[str | None, ...], list[Block]] = {}
    replicated = is_replicated(run)
    for records in _groups(run):
        for table in _tables(run, records, replicated):
            assert table.conditions is not None  # a table has lines, lines have conditions
            by_conditions.setdefault(table.conditions.key, []).append(table)
    return [_merged(run, parts) for parts in by_conditions.values()]


def lost_everywhere(run: Run) -> list[Lost]:
    """Backends lost in every group for one and the same reason: said once, not under each table."""
    cases = {case_of(record) for record in run.records}
    return [item for item in lost_of(run.records) if len(cases) > 1 and item.where == f"all {len(cases)} cases"]


def _groups(run: Run) -> list[list[Record]]:
    """Records by case, those of all its replicates together."""
    groups: dict[str, list[Record]] = {}
    for record in run.records:
        groups.setdefault(case_of(record), []).append(record)
    return list(groups.values())


def _tables(run: Run, records: Sequence[Record], replicated: bool) -> list[Block]:
    """The timed records of a case, a table for each way of measuring."""
    timed: dict[tuple[str | None, ...], list[Record]] = {}
    for record in records:
        if record.time is not None:
            timed.setdefault(conditions_of(run, [record]).key, []).append(record)
    count = len({record.replicate for record in records}) if replicated else 0
    return [_block(run, parts, count) for parts in timed.values()]


def _block(run: Run, records: Sequence[Record], count: int) -> Block:
    """The table of some records of one case, which `count` processes measured; 0 where none was to be replicated."""
    behind: dict[str, Processes] = {}
    rows = list(records)
    if count:
        behind = {name: Processes(members, count) for name, members in by_backend(records).items()}
        rows = combine(records)
    rows.sort(key=_median)  # stable: equals keep the order of the run
    unit, bases = figures.unit_for(_known_medians(rows)), baselines(rows)
    lines = [line_of(record, unit, bases, fastest=record is rows[0] and len(rows) > 1,
                   processes=behind.get(record.backend)) for record in rows]  # fmt: skip
    notes = remarks(run, sorted(records, key=_median), replicated=count > 0)
    return Block(records[0].case_id, conditions_of(run, records), columns_for(unit, lines), lines, notes=notes,
                 reading=read_table(run, rows))


def _merged(run: Run, parts: Sequence[Block]) -> Block:
    there = [line for part in parts for line in part.lines]
    records = [line.record for line in there]
    measured = [record for line in there for record in (line.processes.records if line.processes else [line.record])]
    unit = figures.unit_for(_known_medians(records))
    bases = baselines(records)
    order = list(dict.fromkeys(record.backend for record in run.records))
    shared = _shared_words(records)
    lines = []
    for part in parts:
        # The plan's order in every case: a sweep is read downwards, one backend at a time.
        for line in sorted(part.lines, key=lambda line: order.index(line.record.backend)):
            drawn = line_of(line.record, unit, bases, line.fastest, line.processes)
            cells = {"case": _without(part.title, shared), **drawn.cells}
            lines.append(dataclasses.replace(drawn, cells=cells))
    case = Column("case", "case", 0, number=False)
    conditions = conditions_of(run, measured)
    notes = remarks(run, measured, replicated=any(line.processes for line in lines))
    title = f"{run.suite}, all {'-'.join(shared)}" if shared else run.suite
    return Block(title, conditions, [case, *columns_for(unit, lines)], lines, notes=notes,
                 reading=read_sweep(run, records))


def _shared_words(records: Sequence[Record]) -> list[str]:
    """Parts of the case names that all have, in order: they are said once, above."""
    names = list(dict.fromkeys(record.case_id for record in records))
    return [word for word in names[0].split("-") if len(names) > 1 and all(word in name.split("-") for name in names)]


def _without(title: str, words: Collection[str]) -> str:
    return "-".join(word for word in title.split("-") if word not in words) or title


def columns_for(unit: figures.Unit, lines: Sequence[Line]) -> list[Column]:
    """The columns of which at least one line has something to say."""
    bases = baselines(line.record for line in lines)
    against = f"vs {bases.pop()}" if len(bases) == 1 else "speed-up"
    columns = [
        Column("backend", "backend", 0, number=False),
        Column("median", f"median {unit.name}", 0),
        Column("margin", "95 %", 1),
        Column("spread", "spread", 1),
        Column("speedup", against, 1),
        Column("speedup_margin", "95 %", 3),
        Column("verdict", "", 3, number=False),
        Column("processes", "processes", 4),
        Column("tflops", "TFLOP/s", 2),
        Column("peak", "% peak", 6),
        Column("gbps", "GB/s", 8),
        Column("memory", "MiB", 5),
        Column("error", "max error", 9),
        Column("budget", "% budget", 7),
        Column("samples", "samples", 10),
        Column("busy", f"busy {unit.name}", 5),
        Column("host", "host µs", 11),
        Column("first", "1st call ms", 12),
        Column("setup", "set-up ms", 13),
    ]
    return said(columns, lines)


def line_of(
    record: Record, unit: figures.Unit, bases: Collection[str], fastest: bool, processes: Processes | None = None
) -> Line:
    """The texts of one timed record's row.

    Args:
        record: with a time.
        unit: of all times of the table.
        bases: backends that the table's speed-ups refer to.
        fastest: whether its median is the lowest of its case.
        processes: with replicates, whose figures `record` combines.
    """
    time, rate, memory = record.time, record.rate, record.memory
    assert time is not None  # only timed records come here
    median = _in(unit, time.median_ms)
    half, spread = _in(unit, figures.time_half(time)), _in(unit, processes.spread_ms if processes else None)
    doubt = half if spread is None else spread
    relative = doubt / median if median and doubt is not None else None
    tflops = rate.tflops if rate else None
    cells = {
        "backend": backend_name(record) + (f" {FASTEST}" if fastest else ""),
        "median": figures.measured(median, doubt),
        "margin": figures.margin(median, half),
        "spread": figures.spread(median, spread),
        "processes": str(processes or ""),
        "tflops": figures.measured(tflops, tflops * relative if tflops and relative is not None else None),
        "peak": figures.plain(rate.percent_of_peak if rate else None),
        "gbps": figures.plain(rate.gbps if rate else None),
        "memory": _fixed(memory.peak_allocated_mb if memory else None, 1),
        "samples": "" if time.num_samples is None else str(time.num_samples),
    }
    cells |= _cost_cells(time, unit) | _speedup_cells(record, bases) | _error_cells(record)
    return Line(record, cells, fastest, processes)


def _speedup_cells(record: Record, bases: Collection[str]) -> dict[str, str]:
    speedup = record.speedup
    if speedup is None or speedup.baseline == record.backend:
        return {"verdict": "baseline"} if speedup or record.backend in bases else {}
    half = figures.speedup_half(speedup)
    return {
        "speedup": f"{figures.measured(speedup.ratio, half)}x",
        "speedup_margin": figures.margin(speedup.ratio, half),
        "verdict": speedup.verdict,
    }


def _cost_cells(time: Time, unit: figures.Unit) -> dict[str, str]:
    """Where else time went: gaps between kernels, the host, the first call, the set-up."""
    busy, median = time.busy_ms, time.median_ms
    gaps = busy is not None and median is not None and busy < (1 - GAPS_WORTH_SAYING) * median
    return {
        "busy": figures.plain(busy * unit.per_ms if busy is not None and gaps else None, figures.STEADY_DIGITS),
        "host": figures.plain(None if time.host_ms is None else 1e3 * time.host_ms),
        "first": figures.plain(time.first_call_ms),
        "setup": figures.plain(time.setup_ms),
    }


def _error_cells(record: Record) -> dict[str, str]:
    known = [(error.max_abs, error.budget) for error in record.errors.values() if error.max_abs is not None]
    if not known:
        return {}
    largest, budget = max(known, key=lambda pair: pair[0] / pair[1] if pair[1] else float(pair[0] > 0))
    return {"error": f"{largest:.1e}", "budget": f"{100 * largest / budget:.0f}" if budget else ""}


def lost_of(records: Iterable[Record], say_where: bool = True) -> list[Lost]:
    """What was lost of `records`: one item for each backend and reason, with the places it holds for.

    Args:
        records: of one case or of several, with all their replicates.
        say_where: name the cases; that only some processes of them lost it is said in any case.
    """
    lost: dict[tuple[str, Status, str], list[Record]] = {}
    processes: dict[str, set[int]] = {}
    for record in records:
        processes.setdefault(case_of(record), set()).add(record.replicate)
        if record.status is not Status.PASSED:
            reason = " ".join((record.reason or "").split()).removeprefix(f"{record.backend}: ")
            lost.setdefault((backend_name(record), record.status, reason), []).append(record)
    return [Lost(*key, where=", ".join(_where(items, processes, say_where))) for key, items in lost.items()]


def _where(lost: Sequence[Record], processes: Mapping[str, Collection[int]], say_cases: bool) -> Iterator[str]:
    cases = {case_of(record): record.case_id for record in lost}
    if say_cases and len(cases) == len(processes):
        yield from [f"all {len(cases)} cases"] if len(cases) > 1 else []
    elif say_cases:
        first = next(iter(cases.values()))
        yield first if len(cases) == 1 else f"{len(cases)} cases, from {first}"
    places = sum(len(processes[case]) for case in cases)
    if len(lost) < places:
        yield f"{len(lost)} of {places} processes"


def baselines(records: Iterable[Record]) -> set[str]:
    """Backends that speed-ups of these records refer to."""
    return {record.speedup.baseline for record in records if record.speedup}


def _median(record: Record) -> float:
    return record.time.median_ms if record.time and record.time.median_ms is not None else float("inf")


def _known_medians(records: Iterable[Record]) -> list[float]:
    return [record.time.median_ms for record in records if record.time and record.time.median_ms is not None]


def _in(unit: figures.Unit, time_ms: float | None) -> float | None:
    return None if time_ms is None else time_ms * unit.per_ms


def _fixed(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:.{decimals}f}"
