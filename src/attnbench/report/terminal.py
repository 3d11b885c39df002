"""Text on a terminal: characters that its encoding can show, numbers aligned on their decimal points."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from attnbench.text import for_terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PLAIN_LETTERS = str.maketrans({"µ": "u", "±": "+-", "·": ",", "×": "x", "…": "...", "≤": "<=", "°": ""})
BETWEEN = "   "
STATUSES = {"skipped": "dim", "incorrect": "bold red"}
LOST_STYLE = "red"
PADDING = re.compile(r" +((?:\x1b\[[0-9;]*m)*)\n")


class Terminal:
    """A console that prints texts as they are: no markup, no highlighting, no characters it cannot show."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._plain = not (console.encoding or "").lower().startswith("utf")

    @property
    def width(self) -> int:
        """Characters in a line."""
        return self.console.width

    def words(self, text: str) -> str:
        """`text` as it may be shown (`for_terminal`), in letters that the console has."""
        text = for_terminal(text)
        return text.translate(PLAIN_LETTERS).encode("ascii", "replace").decode() if self._plain else text

    def text(self, text: str, style: str = "") -> Text:
        """A piece of text, taken literally."""
        from rich.text import Text

        return Text(self.words(text), style=style)

    def table(self, heading: bool = True) -> Table:
        """A table without ruled lines."""
        from rich.table import Table

        return Table(box=None, show_header=heading, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")

    def column(self, table: Table, title: str, texts: Sequence[str], *, number: bool) -> list[str]:
        """Add a column to a table; the texts as its cells have to show them.

        Numbers stand right. They are padded here, for a column that is justified right loses the blanks behind a
        number, which keep decimal points and marks in line.
        """
        words = [*map(self.words, texts)]
        if number:
            width = max(map(len, [self.words(title), *words]))
            title, words = title.rjust(width), [word.rjust(width) for word in words]
        table.add_column(self.text(title), overflow="fold")
        return words

    def print(self, item: Any) -> None:
        """Print anything rich can."""
        self.console.print(item)

    def line(self, text: str, style: str = "") -> None:
        """One line, wrapped at the width of the terminal."""
        self.console.print(self.text(text, style))

    def unbroken(self, text: str) -> None:
        """One line, however long: where the terminal wraps it a copy of it is still whole."""
        self.console.print(self.text(text), soft_wrap=True)

    def gap(self) -> None:
        """An empty line."""
        self.console.print()

    def title(self, words: str, conditions: str) -> None:
        """A title with its conditions beside it, or below it on a narrow terminal."""
        title = self.text(words, "bold")
        fits = len(words) + len(BETWEEN) + len(conditions) <= self.width
        if conditions:
            title.append((BETWEEN if fits else "\n") + self.words(conditions), style="not bold dim")
        self.console.print(title)

    def item(self, label: str, text: str, style: str = "") -> None:
        """A labelled line; what does not fit goes on under the text, not under the label."""
        from rich.table import Table

        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(self.text(label, style), self.text(text))
        self.console.print(grid)

    def losses(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Lines of (status, backend, reason), in three columns; those of one reason share a line."""
        together: dict[tuple[str, str], list[str]] = {}
        for status, backend, reason in rows:
            together.setdefault((status, reason), []).append(self.words(backend))
        longest = max((len(name) for names in together.values() for name in names), default=0)
        table = self.table(heading=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold", max_width=max(longest + 1, self.width * 2 // 5))
        table.add_column(overflow="fold")
        for (status, reason), names in together.items():
            style = STATUSES.get(status, LOST_STYLE)
            table.add_row(self.text(status, style), self.text(", ".join(names)), self.text(reason))
        self.console.print(table)


def trimmed(stream: TextIO) -> IO[str]:
    """A stream for rich to write to, `Trimmed`."""
    return cast(IO[str], Trimmed(stream))


class Trimmed:
    """A stream that drops the blanks at the ends of lines, with which rich fills its tables up to their width.

    They would be in every copy, and a terminal made narrower would wrap them.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write without blanks before an end of line, codes of colours between them kept."""
        self._stream.write(PADDING.sub(r"\1\n", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a stream has."""
        return getattr(self._stream, name)


def decimal_aligned(texts: Sequence[str], point: str = " ", digit: str = " ") -> list[str]:
    """Pad numbers at the right so that, right-justified, their decimal points stand in one column.

    Args:
        texts: of one column; an empty one stays empty, of a range (``3.0 to 13``) its first number is aligned.
        point: as wide as a decimal point.
        digit: as wide as a digit.
    """
    tails = [len(text) - len(text.partition(" to ")[0].partition(".")[0]) for text in texts]
    longest = max((tail for tail, text in zip(tails, texts, strict=True) if text), default=0)
    pads = [(digit if tail else point) + digit * (longest - tail - 1) if tail < longest else "" for tail in tails]
    return [text + pad if text else text for text, pad in zip(texts, pads, strict=True)]


def marked(texts: Sequence[str], marks: Sequence[str], point: str = " ", digit: str = " ") -> list[str]:
    """Numbers on their decimal points, each with its mark right behind it or, where others have one, room for it."""
    room = digit if any(marks) else ""
    padded = zip(texts, marks, decimal_aligned(texts, point, digit), strict=True)
    return [f"{text}{mark}{wide[len(text) :]}{room * (not mark)}" if text else "" for text, mark, wide in padded]
