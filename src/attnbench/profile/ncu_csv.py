"""Nsight Compute's CSV: the raw page (one column per metric) and the details page (one row per metric or rule).

The program's output and ncu's ``==PROF==`` lines come before the header; in the raw page, a row of units follows the
header.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence

from attnbench.errors import RunFileError, refusal
from attnbench.profile.capture import Advice, Capture
from attnbench.profile.categories import Categories
from attnbench.profile.figures import decimal_mark, in_unit, number, triple
from attnbench.profile.launches import Profiled, kernel_rows

HEADER = re.compile(r'^"?ID"?,"?Process ID"?,', re.MULTILINE)
PUSH_POP = "Push/Pop_Range"
RANGE = re.compile(r'<[^<>]*>:(.*?)(?::none){2,}|<[^<>]*>:([^":]+):')
"""``123  "<default domain>:name:none:none:…"``: the name ends where the fields of the payload begin."""

IDENTITY = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Kernel Time",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
)
ACCEPTED = "what `ncu --page raw --csv` prints"


def looks_like(text: str) -> bool:
    """Return whether the text is ncu's CSV."""
    return HEADER.search(text) is not None


def parse(text: str, *, name: str, source: str, rules: Categories, advice: str | None = None) -> Capture:
    """Read ncu's CSV, either page.

    Args:
        text: the output of ncu; lines outside the table are skipped.
        name: name of the capture.
        source: file name.
        rules: categories.
        advice: details page of the same capture, for the remarks of ncu's rules.

    Raises:
        RunFileError: the text has no table, or the table has no kernel.
    """
    launches = _launches(text, source)
    if advice is not None:
        for key, found in _launches(advice, source).items():
            if key in launches:
                launches[key].advice = found.advice
    if not launches:
        raise RunFileError(
            refusal(
                "ncu",
                "capture",
                source,
                "holds no kernel",
                ACCEPTED,
                "ncu says `No kernels were profiled` where a filter left none",
            )
        )
    devices = {one.device for one in launches.values() if one.device}
    return Capture(
        tool="ncu",
        name=name,
        source=source,
        kernels=kernel_rows(launches.values(), rules),
        device=devices.pop() if len(devices) == 1 else None,
    )


def _launches(text: str, source: str) -> dict[str, Profiled]:
    header, rows = _table(text, source)
    if "Kernel Name" not in header:
        raise RunFileError(refusal("ncu", "capture", source, "has no column Kernel Name", ACCEPTED))
    lines = [dict(zip(header, row, strict=False)) for row in rows]
    try:
        mark = decimal_mark(cell for line in lines for name, cell in line.items() if _measured(name))
    except RunFileError as error:
        raise RunFileError(refusal("ncu", "capture", source, str(error), ACCEPTED)) from None
    if "Metric Name" in header:
        return _by_line(lines, mark)
    units = lines[0] if lines and not lines[0].get("ID") else {}
    found: dict[str, Profiled] = {}
    for number_, line in enumerate(lines[1:] if units else lines):
        launch = _launch(line)
        launch.device = line.get("device__attribute_display_name") or None
        launch.metrics = {
            name: (number(value, mark), units.get(name, "")) for name, value in line.items() if _measured(name)
        }
        found[line.get("ID") or f"row {number_}"] = launch
    return found


def _measured(column: str) -> bool:
    """Return whether a column holds measurements: a metric of the raw page, or the values of the details page."""
    return column in ("Metric Value", "Estimated Speedup") or ("__" in column and "_Range:" not in column)


def _table(text: str, source: str) -> tuple[list[str], list[list[str]]]:
    """Return header and rows; ncu may print remarks in between, and a file may end in the middle of a row."""
    match = HEADER.search(text)
    if match is None:
        raise RunFileError(refusal("ncu", "capture", source, 'has no header line ("ID","Process ID",…)', ACCEPTED))
    # Keep the line ends: a quoted remark may span several lines.
    lines = [f"{line}\n" for line in text[match.start() :].splitlines() if line.strip() and not line.startswith("==")]
    try:
        header, *rows = list(csv.reader(lines, strict=True))
    except csv.Error as error:
        raise RunFileError(refusal("ncu", "capture", source, f"is cut short ({error})", ACCEPTED)) from None
    # A program may print after its last kernel.  Rows of the table begin with a number, the row of units with nothing.
    rows = [row for row in rows if row and (row[0].isdecimal() or (not row[0] and len(row) > 1))]
    if rows and "Metric Name" not in header and len(rows[-1]) < len(header):
        raise RunFileError(refusal("ncu", "capture", source, "is cut short in its last line", ACCEPTED))
    return header, rows


def _by_line(lines: Sequence[dict[str, str]], mark: str) -> dict[str, Profiled]:
    """Read the details page: one row per metric or remark of a rule."""
    found: dict[str, Profiled] = {}
    metrics: dict[str, dict[str, tuple[float | None, str]]] = {}
    for line in lines:
        key = line.get("ID", "")
        launch = found.setdefault(key, _launch(line))
        if metric := line.get("Metric Name"):
            value = number(line.get("Metric Value"), mark), line.get("Metric Unit") or ""
            # "Memory Throughput" is a percentage in one section and a rate in another.
            rate = " (rate)" * (in_unit(1.0, value[1], "GB/s") is not None and bool(value[1]))
            metrics.setdefault(key, {}).setdefault(metric + rate, value)
        if text := line.get("Rule Description"):
            gain = number(line.get("Estimated Speedup"), mark)
            launch.advice += (
                Advice(
                    rule=line.get("Rule Name") or "",
                    text=" ".join(text.split()),
                    speedup_percent=gain,
                    scope=scope(line.get("Estimated Speedup Type")),
                ),
            )
    for key, mine in metrics.items():
        found[key].metrics = mine
    return found


def scope(text: str | None) -> str | None:
    """Return the scope of a gain as ncu writes it (``global``, ``SpeedupType.LOCAL``); None for any other text."""
    return next((word for word in ("global", "local") if word in (text or "").casefold()), None)


def _launch(line: dict[str, str]) -> Profiled:
    ranges = next((line[name] for name in line if PUSH_POP in name), "")
    return Profiled(
        name=line.get("Kernel Name") or "",
        ranges=tuple(_names(ranges)),
        grid=triple(line.get("Grid Size")),
        block=triple(line.get("Block Size")),
    )


def _names(cell: str) -> Iterable[str]:
    return (match[1] or match[2] for match in RANGE.finditer(cell))
