"""A run arranged for reading: one block a case, texts in cells, notes under it.  No ink of any kind.

The terminal table and the GitHub table are two ways to put these blocks on a page.  A block holds
one case by one timer, cache state and regime on one machine: columns never mix them.
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
"More tables than that are not read: their lines go into one."


def arrange(run: Run, most_blocks: int = MOST_BLOCKS) -> Page:
    """A block a case, or, beyond `most_blocks` of them, a line a case and backend."""
    found = blocks(run)
    if len(found) > most_blocks:
        return Page(sweep(run), lost_of(run.records))
    return Page(found, lost_everywhere(run))


def blocks(run: Run) -> list[Block]:
    """One block for each case and way of measuring, in the order of the run."""
    everywhere = {item.reason_of for item in lost_everywhere(run)}
    return [block for records in by_case(run.records).values() for block in case_blocks(run, records, everywhere)]


def case_blocks(
    run: Run, records: Sequence[Record], said: Collection[Reason] = (), view: View | None = None
) -> list[Block]:
    """The blocks of one case: one for each way of measuring.

    Args:
        run: whose settings and environments hold.
        records: all of the case, those of all its replicates together.
        said: losses that a reader knows already.
        view: columns and order; None is the usual one.
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
    """One block for each way of measuring, with a line for each case and backend: for many cases."""
    by_conditions: dict[tuple[str | None, ...], list[Block]] = {}
    replicated = is_replicated(run)
    for records in by_case(run.records).values():
        for table in _tables(run, records, replicated):
            assert table.conditions is not None  # a table has lines, lines have conditions
            by_conditions.setdefault(table.conditions.key, []).append(table)
    return [_merged(run, parts) for parts in by_conditions.values()]


def lost_everywhere(run: Run) -> list[Lost]:
    """Backends lost in every group for one and the same reason: said once, not under each table."""
    cases = {case_of(record) for record in run.records}
    return [item for item in lost_of(run.records) if len(cases) > 1 and item.where == f"all {len(cases)} cases"]


def by_case(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by case, those of all its replicates together."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(case_of(record), []).append(record)
    return found


def complete_cases(run: Run) -> list[list[Record]]:
    """Records of each case of which nothing of the plan is missing, in the order of the run."""
    have = {(record.group, record.backend) for record in run.records}
    waiting = {group.case_id for group in run.plan if any((group.group, name) not in have for name in group.backends)}
    return [records for records in by_case(run.records).values() if records[0].case_id not in waiting]


def _tables(run: Run, records: Sequence[Record], replicated: bool, view: View | None = None) -> list[Block]:
    """The timed records of a case, a table for each way of measuring."""
    timed: dict[tuple[str | None, ...], list[Record]] = {}
    for record in records:
        if record.time is not None:
            conditions = conditions_of(run, [record])
            timed.setdefault((*conditions.key, conditions.gpu), []).append(record)
    count = len({record.replicate for record in records}) if replicated else 0
    return [_block(run, parts, count, view or View()) for parts in timed.values()]


def _block(run: Run, records: Sequence[Record], count: int, view: View) -> Block:
    """The table of some records of one case, which `count` processes measured; 0 where none was to be replicated."""
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
    shared = shared_words(records)
    lines = []
    for part in parts:
        # The plan's order in every case: a sweep is read downwards, one backend at a time.
        for line in sorted(part.lines, key=lambda line: order.index(line.record.backend)):
            drawn = line_of(line.record, unit, bases, line.fastest, line.processes)
            gpu = gpu_name(run, line.record) or ""
            cells = {"case": without_words(part.title, shared), "gpu": gpu, **drawn.cells}
            lines.append(dataclasses.replace(drawn, cells=cells))
    first = filled([Column("case", "case", 0, number=False), Column("gpu", "GPU", 0, number=False)], lines)
    conditions = conditions_of(run, measured)
    notes = remarks(run, measured, replicated=any(line.processes for line in lines))
    title = f"{run.suite}, all {'-'.join(shared)}" if shared else run.suite
    return Block(
        title, conditions, [*first, *columns_for(unit, lines)], lines, notes=notes, reading=read_sweep(run, records)
    )


def shared_words(records: Sequence[Record]) -> list[str]:
    """Parts of the case names that all have, in order: they are said once, above; none of a single case."""
    names = [_words(name) for name in dict.fromkeys(record.case_id for record in records)]
    return [word for word in names[0] if len(names) > 1 and all(word in name for name in names)]


def without_words(title: str, words: Collection[str]) -> str:
    """A case's name without some of its parts; whole where nothing would be left."""
    return "-".join(word for word in _words(title) if word not in words) or title


def _words(name: str) -> list[str]:
    """The parts of a case's name; the mode ``fwd-bwd`` is one, or without ``fwd`` it would read as a backward alone."""
    return re.split(r"(?<!fwd)-|-(?!bwd)", name)


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


def _typical(record: Record) -> float:
    found = figures.typical_ms(record.time)
    return float("inf") if found is None else found


def _known_times(records: Iterable[Record]) -> list[float]:
    return [found for record in records if (found := figures.typical_ms(record.time)) is not None]
