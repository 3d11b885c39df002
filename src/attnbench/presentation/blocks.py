"""Arranges a run for reading: one block per case, texts in cells, notes below; without layout or colours.

The terminal table and the GitHub table are two layouts of these blocks.  A block contains
one case with one timer, cache state and regime on one machine, so columns never mix them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from attnbench.presentation import figures
from attnbench.presentation.block import Block, Column, Lost, Page, Reason, backend_name, filled
from attnbench.presentation.columns import View, baselines, columns_for, line_of
from attnbench.presentation.conditions import conditions_of
from attnbench.presentation.details import details
from attnbench.presentation.reading import read_sweep, read_table
from attnbench.presentation.remarks import remarks
from attnbench.record import Record, Run, Status
from attnbench.store.environments import gpu_name
from attnbench.store.replicates import Processes, by_backend, case_of, combine, is_replicated

MOST_BLOCKS = 40
"With more tables, all lines are merged into one table."


def arrange(run: Run, most_blocks: int = MOST_BLOCKS) -> Page:
    """Return a block per case, or, beyond `most_blocks`, one with a line per case and backend."""
    found = blocks(run)
    if len(found) > most_blocks:
        return Page(sweep(run), lost_of(run.records))
    return Page(found, lost_everywhere(run))


def blocks(run: Run) -> list[Block]:
    """Return one block for each case and measuring conditions, in the order of the run."""
    everywhere = {item.reason_of for item in lost_everywhere(run)}
    return [block for records in by_case(run.records).values() for block in case_blocks(run, records, everywhere)]


def case_blocks(
    run: Run, records: Sequence[Record], said: Collection[Reason] = (), view: View | None = None
) -> list[Block]:
    """Return the blocks of one case: one for each set of measuring conditions.

    Args:
        run: with the settings and environments.
        records: all of the case, including those of all its replicates.
        said: losses that have been shown already.
        view: columns and order; None means the default.
    """
    replicated = is_replicated(run)
    lost = [item for item in lost_of(records, say_where=False) if item.reason_of not in said]
    title, timed = records[0].case_id, [item for item in records if item.time]
    tables = _tables(run, records, replicated, view)
    tables += details(run, title, combine(timed) if replicated else timed)
    if lost and not tables:
        tables = [Block(title, None)]
    if lost:
        tables[-1] = dataclasses.replace(tables[-1], lost=lost)
    return tables


def sweep(run: Run) -> list[Block]:
    """Return one block for each set of measuring conditions, with a line per case and backend: for many cases."""
    by_conditions: dict[tuple[str | None, ...], list[Block]] = {}
    replicated = is_replicated(run)
    for records in by_case(run.records).values():
        for table in _tables(run, records, replicated):
            assert table.conditions is not None  # a table has lines, lines have conditions
            by_conditions.setdefault(table.conditions.key, []).append(table)
    return [_merged(run, parts) for parts in by_conditions.values()]


def lost_everywhere(run: Run) -> list[Lost]:
    """Return backends lost in every group for the same reason, which is shown once instead of under each table."""
    cases = {case_of(record) for record in run.records}
    return [item for item in lost_of(run.records) if len(cases) > 1 and item.where == f"all {len(cases)} cases"]


def by_case(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group records by case, with all replicates."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(case_of(record), []).append(record)
    return found


def complete_cases(run: Run) -> list[list[Record]]:
    """Return the records of each complete case of the plan, in the order of the run."""
    have = {(record.group, record.backend) for record in run.records}
    waiting = {group.case_id for group in run.plan if any((group.group, name) not in have for name in group.backends)}
    return [records for records in by_case(run.records).values() if records[0].case_id not in waiting]


def _tables(run: Run, records: Sequence[Record], replicated: bool, view: View | None = None) -> list[Block]:
    """Return the timed records of a case, one table for each set of measuring conditions."""
    timed: dict[tuple[str | None, ...], list[Record]] = {}
    for record in records:
        if record.time is not None:
            conditions = conditions_of(run, [record])
            timed.setdefault((*conditions.key, conditions.gpu), []).append(record)
    count = len({record.replicate for record in records}) if replicated else 0
    return [_block(run, parts, count, view or View()) for parts in timed.values()]


def _block(run: Run, records: Sequence[Record], count: int, view: View) -> Block:
    """Return the table of some records of one case, measured by `count` processes; 0 without replicates."""
    behind: dict[str, Processes] = {}
    rows = list(records)
    if count:
        behind = {name: Processes(members, count) for name, members in by_backend(records).items()}
        rows = combine(records)
    quickest = sorted(rows, key=_typical)  # stable: equals keep the order of the run
    unit, bases = figures.unit_for(_known_times(rows)), baselines(rows)
    lines = [line_of(record, unit, bases, fastest=record is quickest[0] and len(rows) > 1,
                     processes=behind.get(record.backend)) for record in view.sorted(rows)]  # fmt: skip
    notes = remarks(run, sorted(records, key=_typical), replicated=count > 0)
    return Block(
        records[0].case_id,
        conditions_of(run, records),
        columns_for(unit, lines, view),
        lines,
        notes=notes,
        reading=read_table(run, quickest),
    )


def _merged(run: Run, parts: Sequence[Block]) -> Block:
    there = [line for part in parts for line in part.lines]
    records = [line.record for line in there]
    measured = [record for line in there for record in (line.processes.records if line.processes else [line.record])]
    unit = figures.unit_for(_known_times(records))
    bases = baselines(records)
    order = list(dict.fromkeys(record.backend for record in run.records))
    shared, names = short_names(record.case_id for record in records)
    lines = []
    for part in parts:
        # The plan's order in every case, so that one backend can be followed down the table.
        for line in sorted(part.lines, key=lambda line: order.index(line.record.backend)):
            drawn = line_of(line.record, unit, bases, line.fastest, line.processes)
            gpu = gpu_name(run, line.record) or ""
            cells = {"case": names[part.title], "gpu": gpu, **drawn.cells}
            lines.append(dataclasses.replace(drawn, cells=cells))
    first = filled([Column("case", "case", 0, number=False), Column("gpu", "GPU", 0, number=False)], lines)
    conditions = conditions_of(run, measured)
    notes = remarks(run, measured, replicated=any(line.processes for line in lines))
    title = f"{run.suite}, all {shared}" if shared else run.suite
    return Block(
        title, conditions, [*first, *columns_for(unit, lines)], lines, notes=notes, reading=read_sweep(run, records)
    )


def short_names(case_ids: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Return what all case names share, to be shown once above, and a short name of each case.

    A short name is what a case has beyond the shared part.  A case with nothing beyond it is named by what the others
    have and it lacks, such as ``without causal``; a single case shares nothing and keeps its name.
    """
    words = {case_id: _words(case_id) for case_id in case_ids}
    every = list(words.values())
    shared = [word for word in every[0] if all(word in one for one in every)] if len(every) > 1 else []
    own = {case_id: [word for word in one if word not in shared] for case_id, one in words.items()}
    lacking = f"without {', '.join(dict.fromkeys(word for one in own.values() for word in one))}"
    return "-".join(shared), {case_id: "-".join(one) or lacking for case_id, one in own.items()}


def _words(name: str) -> list[str]:
    """Split a case's name into parts; the mode ``fwd-bwd`` is one part, as ``bwd`` alone would be another mode."""
    return re.split(r"(?<!fwd)-|-(?!bwd)", name)


def lost_of(records: Iterable[Record], say_where: bool = True) -> list[Lost]:
    """Return the losses of `records`: one for each backend and reason, with the cases concerned.

    Args:
        records: of one case or of several, with all their replicates.
        say_where: name the cases; if only some of their processes lost it, that is always said.
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


def _typical(record: Record) -> float:
    found = figures.typical_ms(record.time)
    return float("inf") if found is None else found


def _known_times(records: Iterable[Record]) -> list[float]:
    return [found for record in records if (found := figures.typical_ms(record.time)) is not None]
