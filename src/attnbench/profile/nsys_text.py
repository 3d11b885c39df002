"""The output of `nsys stats` since 2020: columns under dashes, boxes, CSV and TSV.

A table is recognized by its columns, not by the name of its report: names changed (gpukernsum became
cuda_gpu_kern_sum), the meaning of columns did not.  Units are in the headers: ``Avg (ns)``.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.errors import RunFileError, refusal
from attnbench.profile.capture import ApiRow, Capture, CopyRow, KernelRow, RangeRow
from attnbench.profile.categories import Categories
from attnbench.profile.figures import decimal_mark, in_unit, number, triple, whole
from attnbench.profile.names import short_name
from attnbench.profile.timeline import Event, Timeline, span

DASHES = re.compile(r"^\s*-{2,}(?:\s+-{2,})+\s*$")
RULE = re.compile(r"^\s*\+(?:-+\+)+\s*$")
UNIT = re.compile(r"^(?P<head>.*?)\s*\((?P<unit>ns|us|μs|µs|ms|s|sec|MB|KB|KiB|MiB|GB|B|MBps|%)\)$")
HEADS = {
    "average": "avg",
    "minimum": "min",
    "maximum": "max",
    "median": "med",
    "time(%)": "time",
    "calls": "num calls",
    "operations": "count",
}
ACCEPTED = "what `nsys stats` prints, as text or CSV"
PROGRAM = re.compile(r"nsight-systems/(\d[\d.]*)/")

Row = Mapping[str, str]


@dataclass(slots=True)
class Table:
    """One report: lower-case headers without units, and rows of texts."""

    units: dict[str, str]
    "by header; empty if it has none"
    rows: list[dict[str, str]]
    mark: str = "."

    def has(self, *heads: str) -> bool:
        """Return whether the table has all these columns."""
        return all(head in self.units for head in heads)

    def ms(self, row: Row, head: str) -> float | None:
        """Return a time of a row; without a unit in the header it is in ns."""
        return in_unit(number(row.get(head), self.mark), self.units.get(head) or "ns", "ms")

    def count(self, row: Row, *heads: str) -> int:
        """Return a count of a row; 0 if the row has none."""
        return next((value for head in heads if (value := whole(row.get(head), self.mark)) is not None), 0)

    def mb(self, row: Row, *heads: str) -> float | None:
        """Return a size in 10^6 bytes."""
        for head in heads:
            size = in_unit(number(row.get(head), self.mark), self.units.get(head) or "MB", "B")
            if size is not None:
                return size / 1e6
        return None


def looks_like(text: str) -> bool:
    """Return whether the text has a table of nsys."""
    return any(_kind(table) for table in tables(text))


def parse(text: str, *, name: str, source: str, rules: Categories) -> Capture:
    """Read all tables of the text.

    Args:
        text: the output of `nsys stats`.
        name: name of the capture.
        source: file name.
        rules: categories.

    Raises:
        RunFileError: the text has no table of nsys, or its numbers cannot be read.
    """
    found: dict[str, Table] = {}
    for table in tables(text):
        kind = _kind(table)
        if kind is not None and table.rows:
            found.setdefault(kind, table)
    if not found:
        raise RunFileError(
            refusal(
                "nsys",
                "capture",
                source,
                "holds no table with rows",
                ACCEPTED,
                "without GPU activity in the capture window nsys prints `SKIPPED`",
            )
        )
    cells = [cell for table in found.values() for row in table.rows for cell in row.values()]
    try:
        mark = decimal_mark(cells)
    except RunFileError as error:
        raise RunFileError(refusal("nsys", "capture", source, str(error), ACCEPTED)) from None
    for table in found.values():
        table.mark = mark
    version = PROGRAM.search(text)
    empty = Capture(tool="nsys", tool_version=version[1] if version else None, name=name, source=source)
    return _filled(empty, found, rules)


def _filled(capture: Capture, found: Mapping[str, Table], rules: Categories) -> Capture:
    line = _trace(found["trace"]) if "trace" in found else None
    kernels = line.kernels(rules) if line else _kernels(found.get("kernels by grid") or found.get("kernels"), rules)
    window, busy = span(line.events) if line else (None, None)
    notes = [] if line or not kernels else ["sums only: without a trace or SQLite the idle time is not known"]
    if not line and (share := _share(found.get("kernels by grid") or found.get("kernels"))) is not None:
        notes.append(f"rows are missing: those here hold {share:.0f} % of the kernel time, and shares are of them")
    if any(row.name.endswith("…") for row in kernels):
        notes.append("nsys cut the kernel names: categories go by what is left of them")
    copies = _copies(found.get("copies"), found.get("sizes")) or (line.copies() if line else ())
    return replace(
        capture,
        kernels=kernels,
        copies=copies,
        ranges=_ranges(found.get("projection"), found.get("ranges")),
        api=_api(found.get("api")),
        window_ms=window,
        busy_ms=busy,
        notes=tuple(notes),
    )


def _kind(table: Table) -> str | None:
    """Return the kind of a table, by its columns."""
    if table.has("range", "total proj time"):
        return "projection"
    if table.has("total time", "range"):
        return "ranges"
    if table.has("start", "duration", "name") and (table.has("grdx") or table.has("strm")):
        return "trace"
    if table.has("total time", "instances", "name"):
        return "kernels by grid" if table.has("gridxyz") else "kernels"
    if table.has("total time", "num calls", "name"):
        return "api"
    if table.has("total time", "operation"):
        return "copies"
    return "sizes" if table.has("total", "operation") else None


# ── the tables of a text ───────────────────────────────────────────────────────────────────────────


def tables(text: str) -> Iterator[Table]:
    """Yield every table of a text, in any form."""
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if DASHES.match(line) and index:
            edges = [(match.start(), match.end()) for match in re.finditer(r"-+", line)]
            # Right-aligned headers and cells exceed their dashes only in the last column.
            spans = [(start, edges[i + 1][0] if i + 1 < len(edges) else None) for i, (start, _) in enumerate(edges)]
            yield _table(
                lines[index - 1],
                lines[index + 1 :],
                lambda row, spans=spans: [  # type: ignore[misc]  # mypy infers no lambda with a default
                    row[start:end].strip() for start, end in spans
                ],
            )
        elif RULE.match(line) and index + 2 < len(lines) and RULE.match(lines[index + 2]):
            edges_ = [match.start() for match in re.finditer(r"\+", line)]
            yield _table(
                lines[index + 1],
                list(_until_rule(lines[index + 3 :])),
                lambda row, edges=edges_: [  # type: ignore[misc]  # mypy infers no lambda with a default
                    row[a + 1 : b].strip() for a, b in itertools.pairwise(edges)
                ],
            )
        elif _is_csv_head(line):
            mark = "\t" if "\t" in line else ","
            yield _table(
                line,
                lines[index + 1 :],
                lambda row, mark=mark: next(  # type: ignore[misc]  # mypy infers no lambda with a default
                    csv.reader([row], delimiter=mark), []
                ),
            )


def _until_rule(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if RULE.match(line):
            return
        yield line


def _is_csv_head(line: str) -> bool:
    if not any(word in line.casefold() for word in ("total", "duration")):
        return False  # nearly every line of a long trace: skip the parsing
    cells = next(csv.reader([line], delimiter="\t" if "\t" in line else ","), []) if "," in line or "\t" in line else []
    heads = {_head(cell)[0] for cell in cells}
    return bool(heads & {"name", "operation", "range"}) and bool(
        heads & {"total time", "total", "total proj time", "duration"}
    )


def _table(head: str, lines: Sequence[str], cut: Callable[[str], list[str]]) -> Table:
    heads = [_head(cell) for cell in cut(head)]
    rows = []
    for line in lines:
        if not line.strip() or line.startswith(("Processing [", "Generating ", " ** ")):
            break
        rows.append(dict(zip((name for name, _ in heads), cut(line), strict=False)))
    return Table(dict(heads), rows)


def _head(cell: str) -> tuple[str, str]:
    """Return a header without its unit, in lower case, by its newest name, and the unit."""
    cell = cell.strip().strip('"')
    match = UNIT.match(cell)
    name = (match["head"] if match else cell).casefold()
    return HEADS.get(name, name), match["unit"] if match else ""


# ── their rows ─────────────────────────────────────────────────────────────────────────────────────


def _kernels(table: Table | None, rules: Categories) -> tuple[KernelRow, ...]:
    if table is None:
        return ()
    return tuple(
        KernelRow(
            name=row["name"],
            short=short_name(row["name"]),
            category=rules.of(row["name"]),
            calls=table.count(row, "instances"),
            total_ms=table.ms(row, "total time"),
            mean_ms=table.ms(row, "avg"),
            median_ms=table.ms(row, "med"),
            min_ms=table.ms(row, "min"),
            max_ms=table.ms(row, "max"),
            grid=triple(row.get("gridxyz")),
            block=triple(row.get("blockxyz")),
        )
        for row in table.rows
        if row.get("name")
    )


def _share(table: Table | None) -> float | None:
    """Return the percentage of the kernel time in the rows, by nsys's own column; None if the rows hold all of it."""
    shares = [number(row.get("time"), table.mark) for row in table.rows] if table and table.has("time") else []
    total = sum(share or 0.0 for share in shares)
    # Each printed percentage is rounded to a tenth.
    return total if shares and total + 0.05 * len(shares) + 0.1 < 100.0 else None


def _copies(times: Table | None, sizes: Table | None) -> tuple[CopyRow, ...]:
    found = {row["operation"]: sizes.mb(row, "total") for row in sizes.rows if row.get("operation")} if sizes else {}
    if times is None:
        return tuple(
            CopyRow(operation=row["operation"], calls=sizes.count(row, "count"), total_mb=found[row["operation"]])
            for row in (sizes.rows if sizes else ())
            if sizes and row.get("operation")
        )
    return tuple(
        CopyRow(
            operation=row["operation"],
            calls=times.count(row, "count", "instances"),
            total_ms=times.ms(row, "total time"),
            mean_ms=times.ms(row, "avg"),
            min_ms=times.ms(row, "min"),
            max_ms=times.ms(row, "max"),
            total_mb=found.get(row["operation"]),
        )
        for row in times.rows
        if row.get("operation")
    )


def _api(table: Table | None) -> tuple[ApiRow, ...]:
    if table is None:
        return ()
    return tuple(
        ApiRow(
            name=row["name"],
            calls=table.count(row, "num calls"),
            total_ms=table.ms(row, "total time"),
            mean_ms=table.ms(row, "avg"),
            median_ms=table.ms(row, "med"),
            min_ms=table.ms(row, "min"),
            max_ms=table.ms(row, "max"),
        )
        for row in table.rows
        if row.get("name")
    )


def _ranges(projected: Table | None, host: Table | None) -> tuple[RangeRow, ...]:
    """Return ranges, with GPU time if the projection was printed; ``:name`` is in the default domain."""
    found: dict[str, RangeRow] = {}
    for table in (projected, host):
        for row in table.rows if table else ():
            name = row.get("range", "").removeprefix(":")
            if table is None or not name or name in found:
                continue
            found[name] = RangeRow(
                name=name,
                calls=table.count(row, "range instances", "instances"),
                gpu_ms=table.ms(row, "total proj time"),
                host_ms=table.ms(row, "total range time" if table is projected else "total time"),
            )
    return tuple(found.values())


def _trace(table: Table) -> Timeline:
    """Return the GPU trace: one row per kernel or copy; copies have no grid."""
    line = Timeline()
    for row in table.rows:
        start, length, name = table.ms(row, "start"), table.ms(row, "duration"), row.get("name")
        if start is None or length is None or not name:
            continue
        sizes = [whole(row.get(f"{kind}{axis}"), table.mark) for kind in ("grd", "blk") for axis in "xyz"]
        shape = tuple(size for size in sizes if size is not None)
        copied = name.startswith("[CUDA mem")
        size = table.mb(row, "bytes")
        line.events.append(
            Event(
                "copy" if copied else "kernel",
                name,
                round(1e6 * start),
                round(1e6 * start) + round(1e6 * length),
                bytes=None if size is None or not copied else round(1e6 * size),
                grid=shape[:3] if len(shape) == 6 else None,
                block=shape[3:] if len(shape) == 6 else None,
            )
        )
    return line
