"""Conclusions from all rows of a serving run: time over batch and candidates, the cost of doubling, whether it works.

A doubling is two cases of one backend that differ only in one quantity, by a factor of two; its cost is the ratio of
their times.  Ratios wider than themselves give no number, because they are of medians whose intervals allow anything.
Times are end-to-end medians if every row has them, else those of the timer that all share.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnbench.presentation import figures
from attnbench.presentation.block import Block, Column, Line, backend_name
from attnbench.presentation.ranges import Range, range_of
from attnbench.presentation.serving import REQUESTS, end_to_end
from attnbench.record import Record, Run, Status, Time
from attnbench.stats.summary import is_supported
from attnbench.store.replicates import case_of

WORKLOAD = "hstu-serving"
ROWS, COLUMNS = "batch", "num_candidates"
DOUBLED = {
    "batch": "the users",
    "num_candidates": "the candidates",
    "cached": "the cached tokens",
    "new_tokens": "the new tokens",
}
"Quantities of a case, and their names."

Times = Mapping[str, Mapping[str, tuple[Record, Range]]]
"For each backend and case, a record and its median, ms."


def grids(run: Run) -> list[Block]:
    """Return for each backend the time over users and candidates; nothing for fewer than 2 x 2 cases."""
    known, what = _times(run)
    found = []
    for backend, cases in known.items():
        wide = sorted({record.case[COLUMNS] for record, _ in cases.values()})
        if len(wide) < 2 or len({record.case[ROWS] for record, _ in cases.values()}) < 2:
            continue
        unit = figures.unit_for(time.value for _, time in cases.values())
        rows: dict[tuple[Any, ...], tuple[Record, dict[str, str]]] = {}
        varied = [name for name in _varied(cases) if name not in (ROWS, COLUMNS)]
        order = {name: list(dict.fromkeys(record.case[name] for record, _ in cases.values())) for name in varied}
        places = [
            ((*(record.case[name] for name in varied), record.case[ROWS]), record, time)
            for record, time in cases.values()
        ]
        places.sort(key=lambda one: (*(order[name].index(one[0][at]) for at, name in enumerate(varied)), one[0][-1]))
        for place, record, time in places:
            cells = rows.setdefault(place, (record, dict(zip((*varied, ROWS), map(str, place), strict=True))))[1]
            cells[str(record.case[COLUMNS])] = figures.plain(time.value * unit.per_ms)
        columns = [*(Column(name, name.replace("_", " "), 0) for name in varied), Column(ROWS, "users", 0)]
        columns += [Column(str(count), f"{count} candidates", 0) for count in wide]
        lines = [Line(record, cells) for record, cells in rows.values()]
        found.append(Block(f"{backend}: {what}, {unit.name}", None, columns, lines))
    return found


def doublings(run: Run) -> list[str]:
    """Return a sentence per backend with the cost of doubling each quantity."""
    known, what = _times(run)
    found = []
    for backend, cases in known.items():
        parts = []
        for name, words in DOUBLED.items():
            ratios = _ratios(cases.values(), name)
            if ratios:
                parts.append(f"twice {words} {_factors(ratios)}")
        if parts:
            found.append(f"{what} of {backend}: {', '.join(parts)}")
    return found


def tails(run: Run) -> list[str]:
    """Return a sentence that says why the table Served lacks p99 or p95; none if no row has too few samples."""
    whole = [time for record in run.records if record.counters.get(REQUESTS) and (time := end_to_end(record))]
    counts = [time.num_samples for time in whole if time.num_samples]
    if not counts or is_supported(0.99, min(counts)):
        return []
    fewest = f"{min(counts)} or more" if max(counts) > min(counts) else str(min(counts))
    return [f"p95 takes 20 samples of a row, p99 takes 100, a row here has {fewest}: --iterations 100"]


def works(run: Run) -> list[str]:
    """Return a sentence that says whether a ranking step works on this machine; none for an unchecked run."""
    records = [record for record in run.records if record.workload == WORKLOAD]
    right = [record for record in records if record.status is Status.PASSED and record.errors]
    wrong = [record for record in records if record.status not in (Status.PASSED, Status.SKIPPED)]
    if not right and not wrong:
        return []
    ready = {backend_name(record) for record in right}
    skipped = [record for record in records if record.status is Status.SKIPPED]
    absent = _names(record for record in skipped if backend_name(record) not in ready)
    parts = [f"not here: {absent}"] if absent else []
    others = [record for record in skipped if backend_name(record) in ready]  # out of memory, or interrupted
    if others:
        parts += [f"skipped in {_counted(len({case_of(record) for record in others}), 'case')}: {_names(others)}"]
    missing = len({group.case_id for group in run.plan} - {record.case_id for record in records})
    parts += [f"{missing} of {len(run.plan)} cases were not reached"] if missing else []
    if not wrong:
        cases = len({case_of(record) for record in right})
        first = f"works here: {_names(right)} gave the right logits in {_counted(cases, 'case')}"
        return ["; ".join([first, *parts])]
    reason = " ".join((wrong[0].reason or "").split())
    first = f"does not work here: {_names(wrong)}, {len(wrong)} of {_counted(len(records), 'row')}"
    return ["; ".join([f"{first}; {wrong[0].status.value} in {wrong[0].case_id}: {reason}", *parts])]


def _names(records: Iterable[Record]) -> str:
    return ", ".join(dict.fromkeys(map(backend_name, records)))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def _times(run: Run) -> tuple[Times, str]:
    """Return the medians of all rows, and their name."""
    timed = [record for record in run.records if record.workload == WORKLOAD and record.time]
    whole = [end_to_end(record) for record in timed]
    is_whole = all(whole)
    known: dict[str, dict[str, list[tuple[Record, Range]]]] = {}
    for record, time in zip(timed, whole, strict=True):
        if (median := _median(time if is_whole else record.time)) is not None:
            known.setdefault(backend_name(record), {}).setdefault(record.case_id, []).append((record, median))
    found = {
        backend: {case: (some[0][0], _together([time for _, time in some])) for case, some in cases.items()}
        for backend, cases in known.items()
    }
    return found, "p50 end to end" if is_whole else "median"


def _median(time: Time | None) -> Range | None:
    return range_of(time) if time is not None and time.median_ms else None


def _together(times: Sequence[Range]) -> Range:
    """Return the median of several processes, without a range, or the only one."""
    return times[0] if len(times) == 1 else Range(statistics.median(time.value for time in times))


def _factors(ratios: Sequence[Range]) -> str:
    """Describe the cost of a doubling: the median ratio, and the lowest and highest of several."""
    known = sorted((ratio for ratio in ratios if not ratio.is_wild), key=lambda ratio: ratio.value)
    if not known:
        return "not known: the times vary by more than themselves"
    middle = statistics.median(ratio.value for ratio in known)
    low, *_, high = [figures.short_factor(ratio.value, ratio.half) for ratio in (known[0], *known)]
    if len(known) == 1:
        return f"{low}x"
    widest = max((ratio.half for ratio in known if ratio.half is not None), default=None)
    return f"{figures.short_factor(middle, widest)}x ({low} to {high} in {len(known)} pairs of cases)"


def _varied(cases: Mapping[str, tuple[Record, Range]]) -> list[str]:
    """Return the fields in which the cases differ."""
    first: Sequence[Mapping[str, Any]] = [record.case for record, _ in cases.values()]
    return [name for name in first[0] if len({str(case.get(name)) for case in first}) > 1]


def _ratios(cases: Iterable[tuple[Record, Range]], name: str) -> list[Range]:
    """Return the ratios of times between cases with twice the quantity and those with it."""
    known = {_place(record.case, name, record.case[name]): time for record, time in cases}
    return [
        known[twice].over(time)
        for record, time in cases
        if record.case[name] and (twice := _place(record.case, name, 2 * record.case[name])) in known
    ]


def _place(case: Mapping[str, Any], name: str, value: Any) -> tuple[str, ...]:
    return tuple(f"{key}={value if key == name else one}" for key, one in case.items())
