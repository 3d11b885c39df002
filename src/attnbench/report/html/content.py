"""The content of the page as data, without markup: each run, its cases, and what was not measured."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attnbench.presentation.block import Block, Column, Line, Lost, backend_name
from attnbench.presentation.blocks import blocks, lost_of
from attnbench.presentation.matrix import BEST, Matrix, Summary, summary
from attnbench.record import Environment, Record, Run, Settings, Status
from attnbench.report.checks import COLUMNS, error_rows
from attnbench.report.terminal import decimal_aligned, marked
from attnbench.store.environments import machine_words

Fact = tuple[str, str]

SETTING_NAMES = {
    "l2": "L2",
    "rel_ci": "interval wanted",
    "max_seconds": "at most, a group",
    "lock_clocks": "clocks locked",
}
ENVIRONMENT_NAMES = {
    "os": "system", "torch": "torch", "cuda": "CUDA", "cudnn": "cuDNN", "cpu": "CPU", "ram_gb": "memory",
    "gpu": "GPU", "gpu_mem_gb": "GPU memory", "gpu_uuid": "GPU id", "sm_count": "SMs", "sm_max_mhz": "highest SM clock",
    "l2_mb": "L2", "power_limit_w": "power limit",
}  # fmt: skip
UNITS = {
    "ram_gb": "GB",
    "gpu_mem_gb": "GB",
    "sm_max_mhz": "MHz",
    "l2_mb": "MB",
    "power_limit_w": "W",
    "max_seconds": "s",
    "timeout": "s",
}
POINT, DIGIT = "\u2008", "\u2007"
"Spaces as wide as a decimal point and as a digit."
MOST_OPEN = 24
"Most cases that are shown unfolded; if there are more, all are folded."


@dataclass(frozen=True, slots=True)
class Case:
    """One case of one run: its tables as on the terminal, and its charts."""

    anchor: str
    title: str
    blocks: Sequence[Block]
    figures: Sequence[int] = ()
    "indices in the list of figures"

    @property
    def conditions(self) -> str:
        """Timer, cache state, regime and clock, if all tables share them."""
        words = {" · ".join(block.conditions.words()) for block in self.blocks if block.conditions}
        return words.pop() if len(words) == 1 else ""

    @property
    def fastest(self) -> str:
        """Who has the lowest median (of an import without any: mean), and which; empty where nobody was compared."""
        for block in self.blocks:
            for line in block.lines:
                if line.fastest:
                    time = next(column for column in block.columns if column.key in ("median", "mean"))
                    unit = time.title.split()[-1]
                    return f"{line.cells['backend'].removesuffix(' *')} {line.cells[time.key]} {unit}"
        return ""


@dataclass(frozen=True, slots=True)
class Section:
    """One run."""

    anchor: str
    name: str
    run: Run
    machines: Sequence[str]
    counts: str
    summary: Summary
    cases: Sequence[Case]
    lost: Sequence[Lost]
    environments: Sequence[Sequence[Fact]] = field(default=())
    settings: Sequence[Fact] = ()

    @property
    def anchors(self) -> dict[str, str]:
        """Where each case stands on the page, by its id."""
        return {case.title: case.anchor for case in self.cases}


def sections(runs: Sequence[Run], places: Mapping[tuple[int, str], Sequence[int]]) -> list[Section]:
    """Return one section per run.

    Args:
        runs: in the order given.
        places: indices of the figures of each case, by index of the run and id of the case.
    """
    named = zip(runs, run_names(runs), strict=True)
    return [_section(run, index, name, places) for index, (run, name) in enumerate(named)]


def run_names(runs: Sequence[Run]) -> list[str]:
    """Return names that distinguish runs: the suite, with the id if a suite occurs twice."""
    suites = Counter(run.suite for run in runs)
    return [run.suite if suites[run.suite] == 1 else f"{run.suite} {run.id}" for run in runs]


def _section(run: Run, index: int, name: str, places: Mapping[tuple[int, str], Sequence[int]]) -> Section:
    found = blocks(run)
    tables: dict[str, list[Block]] = {record.case_id: [] for record in run.records}
    for block in sorted([*found, *_checked(run)], key=lambda block: not block.lines):  # tables of losses come last
        tables[block.title].append(block)
    cases = [
        Case(f"r{index}c{number}", title, parts, places.get((index, title), ()))
        for number, (title, parts) in enumerate(tables.items())
    ]
    return Section(
        anchor=f"r{index}",
        name=name,
        run=run,
        machines=list(dict.fromkeys(" · ".join(machine_words(item)) for item in run.environments)),
        counts=_counts(run, len(cases)),
        summary=summary(run),
        cases=cases,
        lost=lost_of(run.records),
        environments=[environment_facts(item) for item in run.environments],
        settings=setting_facts(run.settings),
    )


def _checked(run: Run) -> Iterator[Block]:
    """Yield the errors of records without a time (a run of `check`, a wrong output), one table per case."""
    checked: dict[str, list[Record]] = {}
    for record in run.records:
        if record.time is None and record.errors:
            checked.setdefault(record.case_id, []).append(record)
    columns = [
        Column(name or "found", name or "found", 0, number=name not in ("backend", "output", "")) for name in COLUMNS
    ]
    for case_id, records in checked.items():
        lines = [
            Line(record, {name or "found": text for name, text in row.items()} | {"backend": backend_name(record)})
            for record in records
            for row in error_rows(record)
        ]
        yield Block(case_id, None, columns, lines)


def aligned(texts: Sequence[str]) -> list[str]:
    """Align the decimal points of a column of numbers, with spaces that browsers preserve."""
    return decimal_aligned(texts, POINT, DIGIT)


def rows_of(block: Block) -> list[tuple[Line, list[tuple[Column, str]]]]:
    """Return the lines of a table with their texts, column by column."""
    columns = []
    for column in block.columns:
        texts = [line.cells.get(column.key, "") for line in block.lines]
        columns.append(aligned(texts) if column.number else texts)
    return [
        (line, list(zip(block.columns, texts, strict=True)))
        for line, texts in zip(block.lines, zip(*columns, strict=True), strict=True)
    ]


def texts_of(matrix: Matrix) -> dict[str, list[str]]:
    """Return the columns of a matrix by backend; the fastest is bold instead of marked."""
    columns = {}
    for name in matrix.backends:
        cells = [row.cells.get(name) for row in matrix.rows]
        numbers = [cell.text if cell is not None and cell.value is not None else "" for cell in cells]
        marks = [cell.mark if cell is not None and cell.mark != BEST else "" for cell in cells]
        hosts = [cell.host if cell is not None else "" for cell in cells]
        found = zip(marked(numbers, marks, POINT, DIGIT, hosts), cells, strict=True)
        columns[name] = [number or (cell.text if cell is not None else "") for number, cell in found]
    return columns


def _counts(run: Run, cases: int) -> str:
    statuses = Counter(record.status for record in run.records)
    backends = len({record.backend for record in run.records})
    ends = ", ".join(f"{statuses[status]:,} {status.value}" for status in Status if statuses[status])
    processes = len({record.replicate for record in run.records})
    words = [_many(cases, "case"), _many(backends, "backend")]
    words += [_many(processes, "process", "es")] if processes > 1 else []
    return ", ".join([*words, _many(len(run.records), "row")]) + (f": {ends}" if ends else "")


def _many(count: int, word: str, plural: str = "s") -> str:
    return f"{count:,} {word}{plural if count != 1 else ''}"


def environment_facts(environment: Environment) -> list[Fact]:
    """Return the known facts of a machine, with names and units; packages last."""
    values = {name: value for name, value in _fields(environment).items() if name != "packages"}
    facts = [(ENVIRONMENT_NAMES.get(name, name), _with_unit(name, value)) for name, value in values.items()]
    shown = {name for name in ("torch", "triton") if getattr(environment, name)}
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items() if name not in shown)
    return [*facts, ("packages", packages)] if packages else facts


def setting_facts(settings: Settings) -> list[Fact]:
    """Return the measurement settings; those that had no effect are omitted."""
    values = _fields(settings) | {"rel_ci": f"±{100 * settings.rel_ci:g} %"}
    if settings.iterations is not None:  # with fixed counts, nothing else stops the sampling
        values = {name: value for name, value in values.items() if name not in ("rel_ci", "max_seconds")}
    names = {name: SETTING_NAMES.get(name, name.replace("_", " ")) for name in values}
    return [(names[name], _with_unit(name, value)) for name, value in values.items()]


def _fields(data: Environment | Settings) -> dict[str, object]:
    values = {item.name: getattr(data, item.name) for item in dataclasses.fields(data)}
    return {name: value for name, value in values.items() if value is not None}


def _with_unit(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text} {UNITS[name]}" if name in UNITS else text
