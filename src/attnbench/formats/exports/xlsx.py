"""An Excel workbook with one sheet, `results`: the rows of the CSV, numbers as numbers."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attnbench.errors import Unavailable
from attnbench.formats.exports.base import Exporter
from attnbench.formats.exports.csv import as_text
from attnbench.record import Run
from attnbench.store.rows import columns, rows

if TYPE_CHECKING:
    from openpyxl.cell import WriteOnlyCell

LONGEST_TEXT = 32767
LARGEST_WHOLE = 2**53
"Numbers of a workbook are doubles: above this a whole number is written as text, digit for digit."


def render(run: Run) -> bytes:
    """The bytes of the workbook, streamed: a run of any size needs little memory.

    Raises:
        Unavailable: openpyxl is not installed.
    """
    try:
        from openpyxl import Workbook
    except ImportError:
        raise Unavailable("xlsx: module=openpyxl is not installed; pip install openpyxl") from None
    book = Workbook(write_only=True)
    sheet = book.create_sheet("results")
    sheet.freeze_panes = "A2"
    names = columns(run)
    sheet.append(_cells(sheet, names))
    for row in rows(run):
        sheet.append(_cells(sheet, (row[name] for name in names)))
    data = io.BytesIO()
    book.save(data)
    return data.getvalue()


def _cells(sheet: Any, values: Iterable[Any]) -> list[WriteOnlyCell | None]:
    return [_cell(sheet, value) for value in values]


def _cell(sheet: Any, value: Any) -> WriteOnlyCell | None:
    from openpyxl.cell import WriteOnlyCell

    if value is None:
        return None
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= LARGEST_WHOLE):
        return WriteOnlyCell(sheet, value=value)
    cell = WriteOnlyCell(sheet, value=as_text(value)[:LONGEST_TEXT])
    cell.data_type = "s"  # openpyxl takes a leading = for a formula and #N/A for an error
    return cell


EXPORTER = Exporter(title="an Excel workbook with the sheet `results`", text=False, render=render)
