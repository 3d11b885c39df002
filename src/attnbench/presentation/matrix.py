"""The summary of a run: a matrix of cases by backends, the fastest ones, reasons for gaps, and one sentence."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attnbench.presentation import figures, serving_run
from attnbench.presentation.block import Block, Lost, backend_name
from attnbench.presentation.blocks import by_case, lost_of, short_names, sweep
from attnbench.presentation.columns import VALUES, View
from attnbench.presentation.conditions import Conditions
from attnbench.presentation.gpus import spread_of_gpus
from attnbench.presentation.ranges import Range, range_of, ratio_of
from attnbench.presentation.sparse import break_even
from attnbench.record import Record, Run, Status
from attnbench.store.replicates import by_backend, case_of, is_replicated, verdicts_of_fastest

Place = tuple[str, str]
"""Key of a row: the case, and the GPU if there are several."""
BEST, SAME, UNCLEAR = "*", "=", "?"
MARKS = {BEST: "fastest", SAME: "the same as the fastest", UNCLEAR: "not distinguished from it"}
HOST = "h…"
"In a legend: the host's time of a call after its number, as `h402`."
HOST_SLOWER = 1.05
"Host time over the median from which it is shown: a host that waits for a full queue takes as long as the kernels."
MOST_LEFT = 3
"Groups without a record that are named."
OFTEN = 2
"Rows out of memory that are no longer one row's own affair."
SIZES = "batch", "seqlen", "nheads", "cached", "num_candidates", "embedding_dim", "frames", "height", "width", "model"
"Fields of cases of any workload by which memory grows, in the order in which to try a smaller one."
RIGHT = "ok"
"Text of a cell of a check in which every output was right."


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the matrix."""

    text: str = ""
    mark: str = ""
    "one of `MARKS`, or empty"
    value: float | None = None
    "the number behind the text, in the matrix's unit; None if there is none"
    host: str = ""
    "host time of a call in the matrix's unit, if it is longer than the kernels run"

    @property
    def is_gap(self) -> bool:
        """Whether it shows how a backend ended instead of the requested value."""
        return self.value is None and self.text not in ("", RIGHT)


@dataclass(frozen=True, slots=True)
class Row:
    """One case."""

    name: str
    case_id: str
    cells: Mapping[str, Cell]
    "by backend; missing if it was not requested or not reached"
    gpu: str = ""
    "the GPU that measured it, if there are several"


@dataclass(frozen=True, slots=True)
class Matrix:
    """Cases by backends, measured under the same conditions."""

    title: str
    "name of the values, with unit and the parts all case names share"
    conditions: Conditions | None
    backends: Sequence[str]
    rows: Sequence[Row]

    @property
    def leading(self) -> list[tuple[str, list[str]]]:
        """The columns before those of backends, each a title and its texts: the case, and the GPU if several."""
        gpus = [row.gpu for row in self.rows]
        return [("case", [row.name for row in self.rows]), *([("GPU", gpus)] if any(gpus) else [])]

    @property
    def marks(self) -> dict[str, str]:
        """The marks that occur, and their meanings."""
        used = {cell.mark for row in self.rows for cell in row.cells.values()}
        return {mark: words for mark, words in MARKS.items() if mark in used}

    @property
    def legend(self) -> dict[str, str]:
        """The marks that occur, and what numbers behind a cell are."""
        hosts = any(cell.host for row in self.rows for cell in row.cells.values())
        return self.marks | ({HOST: "host time of a call, longer than its kernels run"} if hosts else {})


@dataclass(frozen=True, slots=True)
class Summary:
    """The end of a run's output."""

    matrices: Sequence[Matrix]
    lost: Sequence[Lost] = ()
    "reasons for gaps"
    sentence: str = ""
    "which backend is fastest; empty if nothing was compared"
    notes: Sequence[str] = field(default=())
    reading: Sequence[str] = field(default=())
    results: Sequence[str] = field(default=())
    "conclusions from several cases, such as the length from which sparsity pays"
    grids: Sequence[Block] = field(default=())
    "one value over two fields of the cases"


def summary(run: Run, view: View | None = None) -> Summary:
    """Return the matrix of each set of measuring conditions, the reasons for gaps and the sentence.

    Args:
        run: with its statistics derived.
        view: the value that the matrices show; None means the median.
    """
    if not run.settings.measure:
        return Summary([_checks(run)] if run.records else [], lost_of(run.records))
    metric = (view or View()).metric
    standings = list(_standings(run))
    marks = {(case, backend): mark for one in standings for (case, backend), mark in one.marks.items()}
    matrices: list[Matrix] = []
    notes: list[str] = []
    reading: list[str] = []
    for block in sweep(run):
        records = [line.record for line in block.lines]
        titles = {column.key: column.title for column in block.columns}
        rows: dict[Place, dict[str, Cell]] = {}
        # An imported run may know means alone.
        shown = "mean" if metric == "median" and "median" not in titles else metric
        unit = _unit(titles.get("median") or titles.get("mean", ""), shown)
        for line in block.lines:
            value = VALUES[shown](line.record)
            place = case_of(line.record), line.cells.get("gpu", "")
            rows.setdefault(place, {})[backend_name(line.record)] = Cell(
                line.cells.get(shown, ""), marks.get((case_of(line.record), line.record.backend), ""),
                None if value is None else value * unit,
                _host(line.record, unit) if shown in ("median", "mean") else "")  # fmt: skip
        matrices.append(_matrix(run, titles.get(shown, shown), block.conditions, records, rows))
        notes += block.notes
        reading += block.reading
    return Summary(
        matrices,
        lost_of(run.records),
        _sentence(standings),
        notes,
        reading,
        [
            *_left_out(run),
            *break_even(run.records),
            *serving_run.doublings(run),
            *serving_run.tails(run),
            *_out_of_memory(run.records),
            *spread_of_gpus(run),
            *serving_run.works(run),
        ],
        serving_run.grids(run),
    )


def _left_out(run: Run) -> list[str]:
    """What a run that was stopped never came to: nothing else tells its table from a whole one."""
    there = {record.group for record in run.records}
    left = [group.group for group in run.plan if group.group not in there]
    if not left or not there:
        return []
    named = ", ".join(left[:MOST_LEFT]) + (f" and {len(left) - MOST_LEFT} more" if len(left) > MOST_LEFT else "")
    were = "was" if len(left) == 1 else "were"
    return [f"{len(left)} of {len(run.plan)} groups {were} not measured, the run was stopped before: {named}"]


def _out_of_memory(records: Sequence[Record]) -> list[str]:
    """Advice if memory ran out repeatedly; each row also has its own reason."""
    full = [record for record in records if record.status is Status.OOM]
    if len(full) < OFTEN:
        return []
    flags = [
        f"--{name.replace('_', '-')}" for name in SIZES if any(record.case.get(name) is not None for record in full)
    ]
    smaller = f": a smaller {' or '.join(filter(None, (', '.join(flags[:-1]), flags[-1])))}" if flags else ""
    return [f"{len(full)} of {len(records)} rows ran out of device memory{smaller}"]


def _matrix(
    run: Run,
    values: str,
    conditions: Conditions | None,
    records: Sequence[Record],
    cells: Mapping[Place, Mapping[str, Cell]],
) -> Matrix:
    """Return rows and columns in the order of the run, with the status of records without a value.

    Args:
        run: of which `records` were measured under `conditions`.
        values: the name of what the cells show, with its unit.
        conditions: of the whole matrix.
        records: timed ones.
        cells: by row and backend.
    """
    there = {backend_name(record) for record in records}
    backends = [name for name in dict.fromkeys(map(backend_name, run.records)) if name in there]
    case_ids = {case_of(record): record.case_id for record in records}
    gaps: dict[str, dict[str, Cell]] = {}
    for record in run.records:
        if record.time is None:
            gaps.setdefault(case_of(record), {})[backend_name(record)] = Cell(record.status.value)
    # A case without any time is a row of gaps, which belongs to no set of conditions in particular.
    timed = {case_of(record) for record in run.records if record.time}
    untimed = {case_of(record): record.case_id for record in run.records if case_of(record) not in timed}
    shared, names = short_names([*case_ids.values(), *untimed.values()])
    rows = [Row(names[case_ids[case]], case_ids[case],
                {name: cell for name in backends if (cell := found.get(name) or gaps.get(case, {}).get(name))}, gpu)
            for (case, gpu), found in cells.items()]  # fmt: skip
    rows += [Row(names[case_id], case_id, {name: cell for name in backends if (cell := gaps[case].get(name))})
             for case, case_id in untimed.items()]  # fmt: skip
    order = list(dict.fromkeys(record.case_id for record in run.records))
    return Matrix(_title(values, shared), conditions, backends, sorted(rows, key=lambda row: order.index(row.case_id)))


def _checks(run: Run) -> Matrix:
    """For a run that timed nothing: whether each backend was right."""
    shared, names = short_names(record.case_id for record in run.records)
    rows = []
    for records in by_case(run.records).values():
        cells = {}
        for name, members in by_backend(records).items():
            wrong = next((one.status for one in members if one.status is not Status.PASSED), None)
            cells[backend_name(members[0]) if members else name] = Cell(RIGHT if wrong is None else wrong.value)
        rows.append(Row(names[records[0].case_id], records[0].case_id, cells))
    ran = [name for name in dict.fromkeys(map(backend_name, run.records))
           if any(row.cells[name].text == RIGHT for row in rows if name in row.cells)]  # fmt: skip
    return Matrix(_title("outputs", shared), None, ran, rows)


def _title(values: str, shared: str) -> str:
    return f"{values} · all {shared}" if shared else values


def _host(record: Record, unit: float) -> str:
    """Host time of a call in a unit, if a loop of calls would wait for the host instead of the kernels."""
    time = record.time
    if time is None or time.host_ms is None or not time.median_ms or time.host_ms < HOST_SLOWER * time.median_ms:
        return ""
    return figures.plain(time.host_ms * unit)


def _unit(title: str, metric: str) -> float:
    """Return the factor that converts a value to the unit at the end of the column's title."""
    name = title.rsplit(" ", 1)[-1]
    factors = {unit.name: unit.per_ms for unit in (figures.MICROSECONDS, figures.MILLISECONDS, figures.SECONDS)}
    if metric in ("median", "mean", "margin", "busy"):
        return factors.get(name, 1.0)
    return 1e3 if metric == "host" else 1.0


# ── the fastest backend ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Standing:
    """The ranking of one case under one set of measuring conditions."""

    case: str
    records: Sequence[Record]
    "timed ones, the fastest first; replicates combined"
    verdicts: Mapping[str, str]
    "of the fastest compared with each other backend"

    @property
    def is_clear(self) -> bool:
        """Whether the fastest is shown to be faster than each other backend."""
        return all(verdict == "faster" for verdict in self.verdicts.values())

    @property
    def marks(self) -> dict[tuple[str, str], str]:
        """Marks of the backends of the case."""
        if not self.verdicts:  # nothing to compare with
            return {}
        signs = {"faster": "", "same": SAME}
        found = {name: signs.get(verdict, UNCLEAR) for name, verdict in self.verdicts.items()}
        return {(self.case, name): mark for name, mark in {self.records[0].backend: BEST, **found}.items()}


def _standings(run: Run) -> Iterator[Standing]:
    replicated = is_replicated(run)
    for block in sweep(run):
        cases: dict[str, list[Record]] = {}
        behind: dict[str, list[Record]] = {}
        for line in block.lines:
            if line.record.time and line.record.time.median_ms:
                cases.setdefault(case_of(line.record), []).append(line.record)
                behind.setdefault(case_of(line.record), []).extend(
                    line.processes.records if line.processes else [line.record]
                )
        for case, records in cases.items():
            records.sort(key=lambda record: record.time.median_ms or 0.0 if record.time else 0.0)
            yield Standing(case, records, verdicts_of_fastest(behind[case], records[0].backend, replicated=replicated))


def _sentence(standings: Sequence[Standing]) -> str:
    """Describe which backend is fastest, in how many of the cases compared, and by how much."""
    contests = [one for one in standings if one.verdicts]
    if not contests:
        return ""
    wins = Counter(backend_name(one.records[0]) for one in contests if one.is_clear)
    leads = Counter(backend_name(one.records[0]) for one in contests)
    if len(contests) == 1:
        return _single(contests[0])
    if not wins:
        name, count = leads.most_common(1)[0]
        return (
            f"no clear winner in any of {len(contests)} cases; {name} has the lowest median in {count}"
            f"{_against(contests, name)}"
        )
    name, count = max(wins.items(), key=lambda item: (item[1], leads[item[0]]))
    open_cases = len(contests) - wins.total()
    parts = [f"{name} is fastest in {count} of {len(contests)} cases"]
    parts += [f"{other} in {times}" for other, times in wins.most_common() if other != name]
    parts += [f"no clear winner in {open_cases}"] if open_cases else []
    return ", ".join(parts) + _against(contests, name)


def _single(contest: Standing) -> str:
    first, *others = map(backend_name, contest.records)
    tied = [backend_name(record) for record in contest.records[1:] if contest.verdicts.get(record.backend) != "faster"]
    if tied:
        return f"no clear winner: {first} cannot be distinguished from {', '.join(tied)}"
    return f"{first} is fastest{_against([contest], first)}" if others else ""


def _against(contests: Sequence[Standing], name: str) -> str:
    """How many times as fast a backend is as the baseline, or, if it is that itself, as who is next behind it.

    Times and ratios that are not known to within themselves give no number; the number of the other cases is added.
    """
    named = [{one for record in contest.records for one in (record.backend, backend_name(record))}
             for contest in contests]  # fmt: skip
    contests = [dataclasses.replace(one, records=[record for record in one.records if not _is_wild(record)])
                for one in contests]  # fmt: skip
    ratios = [
        record.speedup
        for one in contests
        for record in one.records
        if backend_name(record) == name
        and record.speedup
        and record.speedup.baseline != record.backend
        and any(other.backend == record.speedup.baseline for other in one.records)
    ]
    found: list[Range] = []
    baseline = ""
    if ratios:
        baseline = ratios[0].baseline
        found = [ratio_of(one) for one in ratios if one.baseline == baseline]
    else:
        rivals = [_next_behind(one, name) for one in contests]
        counted = Counter(rival[0] for rival in rivals if rival)
        if counted:
            baseline = counted.most_common(1)[0][0]
            found = [ratio for one in contests if (ratio := _ratio(one, name, baseline)) is not None]
    texts = [(one.value, figures.short_factor(one.value, one.half)) for one in found if one.is_known]
    if not texts:
        return ""
    low, high = min(texts)[1], max(texts)[1]
    both = sum({name, baseline} <= names for names in named)
    known = f" (known in {len(texts)} of {both} cases)" if len(texts) < both else ""
    ends = f"{low} to {high}" if low != high else low
    return f"; {ends} times as fast as {baseline}{known}"


def _is_wild(record: Record) -> bool:
    return record.time is not None and figures.wild_time(record.time)


def _next_behind(contest: Standing, name: str) -> tuple[str, Range] | None:
    others = [record for record in contest.records if backend_name(record) != name]
    ratio = _ratio(contest, name, backend_name(others[0])) if others else None
    return None if ratio is None else (backend_name(others[0]), ratio)


def _ratio(contest: Standing, name: str, other: str) -> Range | None:
    """Other's median over this one's: paired if the run has a speed-up of the two, else the ratio of medians."""
    by_name = {backend_name(record): record for record in contest.records}
    own, rival = by_name.get(name), by_name.get(other)
    if own is None or rival is None:
        return None
    if rival.speedup and rival.speedup.baseline == own.backend and rival.speedup.ratio:
        return Range(1.0, 1.0, 1.0).over(ratio_of(rival.speedup))
    medians = [range_of(record.time) if record.time else None for record in (rival, own)]
    return medians[0].over(medians[1]) if medians[0] and medians[1] and medians[1].value else None
