"""An Excel workbook: the matrix of cases by backends first, the rows of the CSV in the last sheet."""

from __future__ import annotations

import datetime
import io
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.errors import Unavailable
from attnbench.formats.exports.base import Exporter
from attnbench.formats.exports.csv import as_text
from attnbench.presentation.matrix import BEST, Matrix, Summary, summary
from attnbench.record import Run
from attnbench.store.environments import machine_words
from attnbench.store.rows import columns, rows

if TYPE_CHECKING:
    from openpyxl.cell import WriteOnlyCell

LONGEST_TEXT = 32767
LARGEST_WHOLE = 2**53
"Numbers of a workbook are doubles: a larger whole number is written as text, with all digits."
NARROWEST, WIDEST = 8, 40
"Limits of a column's width, in characters."
LOOKED_AT = 50
"Rows from which the width of a text column is computed."
DATE = "yyyy-mm-dd hh:mm:ss"
FORMATS = (
    (r"(errors\..*|.*\.(max_abs|rel_l1|rmse|budget))$", "0.0E+00"),
    (r"work\..*$", "#,##0"),
    (r".*_ms$", "0.0000"),
    (r"(speedup\..*|.*cosine)$", "0.0000"),
    (r"(rate\..*|memory\..*|.*_(mb|gb|w)|.*watts.*|ceilings\..*|.*_mhz.*)$", "#,##0.00"),
)
"Number formats of columns, by name; whole numbers and all others have none."
SMALL = "0.00E+00"
"Format of a number of which its column's decimals would show less than two digits, or a 0."


def render(run: Run) -> bytes:
    """Return the bytes of the workbook; rows are streamed, so a run of any size needs little memory.

    Raises:
        Unavailable: openpyxl is not installed.
    """
    try:
        from openpyxl import Workbook
    except ImportError:
        raise Unavailable("xlsx: module=openpyxl is not installed; pip install openpyxl") from None
    book = Workbook(write_only=True)
    _summary(book.create_sheet("matrix"), run, summary(run))
    _results(book.create_sheet("results"), run)
    data = io.BytesIO()
    book.save(data)
    return data.getvalue()


def _summary(sheet: Any, run: Run, found: Summary) -> None:
    """Write the sentence, the matrices one below the other, and the reasons of empty cells."""
    columns = itertools.zip_longest(*map(_columns, found.matrices), fillvalue=())
    first, second, *others = [*(_wide(itertools.chain(*column)) for column in columns), NARROWEST, NARROWEST]
    # The second column has the date of the run: a date that does not fit its column is shown as ####.
    _widths(sheet, [first, max(second, len(DATE) + 2), *others])
    sheet.freeze_panes = "B1"
    sheet.append([_text(sheet, run.suite, bold=True), _date(sheet, run.started)])
    for machine in dict.fromkeys(" · ".join(machine_words(environment)) for environment in run.environments):
        sheet.append([_text(sheet, machine)])
    for sentence in filter(None, (found.sentence, *found.results)):
        sheet.append([_text(sheet, sentence, bold=True)])
    for matrix in found.matrices:
        sheet.append([])
        _matrix(sheet, matrix)
    if found.lost:
        sheet.append([])
    for item in found.lost:
        words = (item.status.value, item.backend, item.reason, item.where)
        sheet.append([_text(sheet, word) for word in words if word])


def _columns(matrix: Matrix) -> list[list[str]]:
    """Return the texts of a matrix by column, headers first."""
    cells = [[name, *(row.cells[name].text for row in matrix.rows if name in row.cells)] for name in matrix.backends]
    return [*([title, *column] for title, column in matrix.leading), *cells]


def _matrix(sheet: Any, matrix: Matrix) -> None:
    words = [matrix.title, *(matrix.conditions.words() if matrix.conditions else ())]
    sheet.append([_text(sheet, " · ".join(words), bold=True)])
    leading = matrix.leading
    heads = [_text(sheet, title, bold=True) for title, _ in leading]
    sheet.append([*heads, *(_right(_text(sheet, name, bold=True)) for name in matrix.backends)])
    for index, row in enumerate(matrix.rows):
        cells: list[WriteOnlyCell | None] = [_text(sheet, column[index]) for _, column in leading]
        for name in matrix.backends:
            cell = row.cells.get(name)
            if cell is None:
                cells.append(None)
            elif cell.value is None:
                cells.append(_right(_text(sheet, cell.text)))
            else:
                number = _cell(sheet, cell.value, _decimals(cell.text))
                cells.append(_styled(number, bold=cell.mark == BEST, italic=bool(cell.mark) and cell.mark != BEST))
        sheet.append(cells)
    if matrix.marks:
        how = {BEST: "bold"}
        words = [f"{how.get(mark, 'italic')}: {said}" for mark, said in matrix.marks.items()]
        sheet.append([_text(sheet, ", ".join(words))])


def _results(sheet: Any, run: Run) -> None:
    """Write all rows and columns, with frozen header and filters."""
    from openpyxl.utils import get_column_letter

    names, lines = columns(run), rows(run)
    _widths(sheet, [_wide([name, *_longest([row[name] for row in lines], _format(name))]) for name in names])
    sheet.freeze_panes = "A2"
    if names:
        sheet.auto_filter.ref = f"A1:{get_column_letter(len(names))}{len(lines) + 1}"
    sheet.append([_text(sheet, name, bold=True) for name in names])
    formats = [_format(name) for name in names]
    for row in lines:
        sheet.append(
            [
                _date(sheet, row[name])
                if name == "run.started"
                else _cell(sheet, row[name], _visible(row[name], shown))
                for name, shown in zip(names, formats, strict=True)
            ]
        )


def _widths(sheet: Any, widths: Sequence[int]) -> None:
    from openpyxl.utils import get_column_letter

    for number, width in enumerate(widths, start=1):
        sheet.column_dimensions[get_column_letter(number)].width = width


def _wide(texts: Iterable[str]) -> int:
    return min(max([NARROWEST, *(len(text) + 2 for text in texts)]), WIDEST)


def _longest(values: Sequence[Any], shown: str | None) -> Iterator[str]:
    """Yield all numbers of a column as shown, and the first of its texts.

    A text that is cut off appears elsewhere too; a number that does not fit is not shown at all.
    """
    numbers = [one for one in values if isinstance(one, int) or (isinstance(one, float) and math.isfinite(one))]
    spelling = {"#,##0": ",.0f", "#,##0.00": ",.2f", "0.0000": ".4f", "0.0E+00": ".1e"}.get(shown or "")
    for number in (min(numbers), max(numbers)) if numbers else ():
        yield (
            format(number, spelling) if spelling else f"{number:.6g}" if isinstance(number, float) else as_text(number)
        )
    yield from (as_text(one) for one in values[:LOOKED_AT] if isinstance(one, str))


def _format(name: str) -> str | None:
    return next((shown for pattern, shown in FORMATS if re.match(pattern, name)), None)


def _visible(value: Any, shown: str | None) -> str | None:
    """Return a column's format, or `SMALL` for a number that needs more decimals than it has."""
    places = len((shown or "").partition(".")[2]) if "E" not in (shown or "") else 0
    return SMALL if places and isinstance(value, float) and 0.0 < abs(value) < 10.0 ** (1 - places) else shown


def _decimals(text: str) -> str:
    """Return the format of a number with as many decimals as its text, which its interval supports."""
    places = len(text.rstrip("x").partition(".")[2]) if "e" not in text else 0
    return "0" + ("." + "0" * places if places else "")


def _date(sheet: Any, started: Any) -> WriteOnlyCell | None:
    """Return a UTC time as a date of the spreadsheet, or the text if it is not a time."""
    from openpyxl.cell import WriteOnlyCell

    try:
        moment = datetime.datetime.fromisoformat(str(started)).astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return _cell(sheet, started)
    if not 1900 < moment.year < 9999:
        return _cell(sheet, started)
    cell = WriteOnlyCell(sheet, value=moment)
    cell.number_format = DATE
    return cell


def _text(sheet: Any, text: str, *, bold: bool = False) -> WriteOnlyCell:
    from openpyxl.cell import WriteOnlyCell

    cell = WriteOnlyCell(sheet, value=text[:LONGEST_TEXT])
    cell.data_type = "s"  # openpyxl treats a leading = as a formula and #N/A as an error
    return _styled(cell, bold=bold)


def _right(cell: Any) -> Any:
    """Align a text with the numbers of its column."""
    from openpyxl.styles import Alignment

    cell.alignment = Alignment(horizontal="right")
    return cell


def _styled(cell: Any, *, bold: bool = False, italic: bool = False) -> Any:
    from openpyxl.styles import Font

    if bold or italic:
        cell.font = Font(bold=bold, italic=italic)
    return cell


def _cell(sheet: Any, value: Any, shown: str | None = None) -> WriteOnlyCell | None:
    from openpyxl.cell import WriteOnlyCell

    if value is None:
        return None
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= LARGEST_WHOLE):
        cell = WriteOnlyCell(sheet, value=value)
        if shown is not None and not isinstance(value, bool):
            cell.number_format = shown
        return cell
    return _text(sheet, as_text(value))


EXPORTER = Exporter(
    title="an Excel workbook: the matrix of cases by backends, and the rows of the CSV", text=False, render=render
)
