"""Comma-separated values: one row per record, units in the names, empty for unknown values."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from attnbench.formats.exports.base import Exporter, harmless
from attnbench.record import Run
from attnbench.store.rows import columns, rows


def render(run: Run) -> bytes:
    """Return UTF-8 with line feeds; numbers have nine digits, true and false are lower-case."""
    names = columns(run)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(harmless, names))
    writer.writerows([_cell(row[name]) for name in names] for row in rows(run))
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format(value, ".9g")
    return value if isinstance(value, int) else harmless(as_text(value))


def as_text(value: Any) -> str:
    """Return a value that is not a number as one cell: texts of a list separated by semicolons, others as JSON."""
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return "; ".join(value)
    return str(value) if isinstance(value, str) else json.dumps(value)


EXPORTER = Exporter(title="one row per record, for spreadsheets and scripts", text=True, render=render)
