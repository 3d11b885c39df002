"""A run arranged for reading: one block a case, texts in cells, notes under it.  No ink of any kind.

The terminal table and the GitHub table are two ways to put these blocks on a page.  A block holds
one case by one timer, cache state and regime on one machine: columns never mix them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from attnbench.record import Record, Run, Status, Time
from attnbench.store import figures
from attnbench.store.block import Block, Column, Line, Lost, Page, backend_name
from attnbench.store.conditions import conditions_of
from attnbench.store.details import details
from attnbench.store.remarks import remarks

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
    """One block for each case, replicate and way of measuring, in the order of the run."""
    everywhere = {(item.backend, item.status, item.reason) for item in lost_everywhere(run)}
    found = []
    for records in _groups(run):
        lost = [item for item in lost_of(records, say_where=False)
                if (item.backend, item.status, item.reason) not in everywhere]  # fmt: skip
        tables = [*_tables(run, records), *details(run, _title(records), [item for item in records if item.time])]
        if lost and not tables:
            tables = [Block(_title(records), None)]
        if lost:
            tables[-1] = dataclasses.replace(tables[-1], lost=lost)
        found += tables
    return found


def sweep(run: Run) -> list[Block]:
    """One block for each way of measuring, with a line for each case and backend: for many cases."""
    by_conditions: dict[tuple[str | None, ...], list[Block]] = {}
    for records in _groups(run):
        for table in _tables(run, records):
            assert table.conditions is not None  # a table has lines, lines have conditions
            by_conditions.setdefault(table.conditions.key, []).append(table)
    return [_merged(run, parts) for parts in by_conditions.values()]


def lost_everywhere(run: Run) -> list[Lost]:
    """Backends lost in every group for one and the same reason: said once, not under each table."""
    groups = {(record.group, record.replicate) for record in run.records}
    return [item for item in lost_of(run.records) if len(groups) > 1 and item.where == f"all {len(groups)} cases"]


def _groups(run: Run) -> list[list[Record]]:
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in run.records:
        groups.setdefault((record.group, record.replicate), []).append(record)
    return list(groups.values())


def _title(records: Sequence[Record]) -> str:
    first = records[0]
    return first.case_id + (f"  (replicate {first.replicate + 1})" if first.replicate else "")


def _tables(run: Run, records: Sequence[Record]) -> list[Block]:
    """The timed records of a group, a table for each way of measuring."""
    timed: dict[tuple[str | None, ...], list[Record]] = {}
    for record in records:
        if record.time is not None:
            timed.setdefault(conditions_of(run, [record]).key, []).append(record)
    return [_block(run, _title(records), parts) for parts in timed.values()]


def _block(run: Run, title: str, records: Sequence[Record]) -> Block:
    ordered = sorted(records, key=_median)  # stable: equals keep the order of the run
    unit = figures.unit_for(_known_medians(ordered))
    bases = _baselines(ordered)
    lines = [_line(record, unit, bases, fastest=record is ordered[0] and len(ordered) > 1) for record in ordered]
    return Block(title, conditions_of(run, records), columns_for(unit, lines), lines, notes=remarks(run, ordered))


def _merged(run: Run, parts: Sequence[Block]) -> Block:
    records = [line.record for part in parts for line in part.lines]
    unit = figures.unit_for(_known_medians(records))
    bases = _baselines(records)
    order = list(dict.fromkeys(record.backend for record in run.records))
    shared = _shared_words(records)
    lines = []
    for part in parts:
        # The plan's order in every case: a sweep is read downwards, one backend at a time.
        for line in sorted(part.lines, key=lambda line: order.index(line.record.backend)):
            drawn = _line(line.record, unit, bases, line.fastest)
            lines.append(Line(line.record, {"case": _without(part.title, shared), **drawn.cells}, line.fastest))
    case = Column("case", "case", 0, number=False)
    conditions = conditions_of(run, records)
    title = f"{run.suite}, all {'-'.join(shared)}" if shared else run.suite
    return Block(title, conditions, [case, *columns_for(unit, lines)], lines, notes=remarks(run, records))


def _shared_words(records: Sequence[Record]) -> list[str]:
    """Parts of the case names that all have, in order: they are said once, above."""
    names = list(dict.fromkeys(record.case_id for record in records))
    return [word for word in names[0].split("-") if len(names) > 1 and all(word in name.split("-") for name in names)]


def _without(title: str, words: Collection[str]) -> str:
    return "-".join(word for word in title.split("-") if word not in words) or title


def columns_for(unit: figures.Unit, lines: Sequence[Line]) -> list[Column]:
    """The columns of which at least one line has something to say."""
    bases = _baselines(line.record for line in lines)
    against = f"vs {bases.pop()}" if len(bases) == 1 else "speed-up"
    columns = [
        Column("backend", "backend", 0, number=False),
        Column("median", f"median {unit.name}", 0),
        Column("margin", "95 %", 1),
        Column("speedup", against, 1),
        Column("speedup_margin", "95 %", 5),
        Column("verdict", "", 3, number=False),
        Column("tflops", "TFLOP/s", 2),
        Column("peak", "% peak", 6),
        Column("gbps", "GB/s", 8),
        Column("memory", "MiB", 4),
        Column("error", "max error", 9),
        Column("budget", "% budget", 7),
        Column("samples", "samples", 10),
        Column("busy", f"busy {unit.name}", 5),
        Column("host", "host µs", 11),
        Column("first", "1st call ms", 12),
        Column("setup", "set-up ms", 13),
    ]
    return [column for column in columns if any(line.cells.get(column.key) for line in lines)]


def _line(record: Record, unit: figures.Unit, bases: Collection[str], fastest: bool) -> Line:
    time, rate, memory = record.time, record.rate, record.memory
    assert time is not None  # only timed records come here
    half, relative = figures.time_half(time), figures.time_relative(time)
    median = None if time.median_ms is None else time.median_ms * unit.per_ms
    half = None if half is None else half * unit.per_ms
    tflops = rate.tflops if rate else None
    cells = {
        "backend": backend_name(record) + (f" {FASTEST}" if fastest else ""),
        "median": figures.measured(median, half),
        "margin": figures.margin(median, half),
        "tflops": figures.measured(tflops, tflops * relative if tflops and relative is not None else None),
        "peak": figures.plain(rate.percent_of_peak if rate else None),
        "gbps": figures.plain(rate.gbps if rate else None),
        "memory": _fixed(memory.peak_allocated_mb if memory else None, 1),
        "samples": "" if time.num_samples is None else str(time.num_samples),
    }
    return Line(record, cells | _cost_cells(time, unit) | _speedup_cells(record, bases) | _error_cells(record), fastest)


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
    """What was lost of `records`: one item for each backend and reason, with the cases it holds for."""
    cases: dict[tuple[str, Status, str], list[str]] = {}
    places = set()
    for record in records:
        places.add((record.group, record.replicate))
        if record.status is not Status.PASSED:
            reason = " ".join((record.reason or "").split()).removeprefix(f"{record.backend}: ")
            cases.setdefault((backend_name(record), record.status, reason), []).append(record.case_id)
    return [Lost(*key, where=_where(ids, len(places)) if say_where else "") for key, ids in cases.items()]


def _where(case_ids: Sequence[str], num_groups: int) -> str:
    if len(case_ids) == num_groups:
        return f"all {num_groups} cases" if num_groups > 1 else ""
    return case_ids[0] if len(case_ids) == 1 else f"{len(case_ids)} cases, from {case_ids[0]}"


def _baselines(records: Iterable[Record]) -> set[str]:
    return {record.speedup.baseline for record in records if record.speedup}


def _median(record: Record) -> float:
    return record.time.median_ms if record.time and record.time.median_ms is not None else float("inf")


def _known_medians(records: Iterable[Record]) -> list[float]:
    return [record.time.median_ms for record in records if record.time and record.time.median_ms is not None]


def _fixed(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:.{decimals}f}"
