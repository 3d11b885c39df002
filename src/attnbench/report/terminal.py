"""Text on a terminal: characters that its encoding supports, numbers aligned on their decimal points."""

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
    """A console that prints texts literally: no markup, no highlighting, no unsupported characters."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._plain = not (console.encoding or "").lower().startswith("utf")

    @property
    def width(self) -> int:
        """Characters per line."""
        return self.console.width

    def words(self, text: str) -> str:
        """Return `text` as it may be shown (`for_terminal`), in characters that the console supports."""
        text = for_terminal(text)
        return text.translate(PLAIN_LETTERS).encode("ascii", "replace").decode() if self._plain else text

    def text(self, text: str, style: str = "") -> Text:
        """Return a piece of text, taken literally."""
        from rich.text import Text

        return Text(self.words(text), style=style)

    def table(self, heading: bool = True) -> Table:
        """A table without ruled lines."""
        from rich.table import Table

        return Table(box=None, show_header=heading, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")

    def column(self, table: Table, title: str, texts: Sequence[str], *, number: bool) -> list[str]:
        """Add a column to a table; return the texts for its cells.

        Numbers are right-aligned. They are padded here, because a right-justified column loses the trailing blanks
        that keep decimal points and marks aligned.
        """
        words = [*map(self.words, texts)]
        if number:
            width = max(map(len, [self.words(title), *words]))
            title, words = title.rjust(width), [word.rjust(width) for word in words]
        table.add_column(self.text(title), overflow="fold")
        return words

    def print(self, item: Any) -> None:
        """Print any rich renderable."""
        self.console.print(item)

    def line(self, text: str, style: str = "") -> None:
        """Print one line, wrapped at the width of the terminal."""
        self.console.print(self.text(text, style))

    def unbroken(self, text: str) -> None:
        """Print one line without breaking it, so that it can be copied as a whole even if the terminal wraps it."""
        self.console.print(self.text(text), soft_wrap=True)

    def gap(self) -> None:
        """Print an empty line."""
        self.console.print()

    def title(self, words: str, conditions: str) -> None:
        """Print a title with its conditions beside it, or below it on a narrow terminal."""
        title = self.text(words, "bold")
        fits = len(words) + len(BETWEEN) + len(conditions) <= self.width
        if conditions:
            title.append((BETWEEN if fits else "\n") + self.words(conditions), style="not bold dim")
        self.console.print(title)

    def item(self, label: str, text: str, style: str = "") -> None:
        """Print a labelled line; continuation lines are indented to the text, not to the label."""
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
    """Wrap a stream for rich in `Trimmed`."""
    return cast(IO[str], Trimmed(stream))


class Trimmed:
    """A stream that drops trailing blanks, with which rich fills its tables up to their width.

    They would be in every copy, and wrap when the terminal is made narrower.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write without blanks before an end of line; colour codes between them are kept."""
        self._stream.write(PADDING.sub(r"\1\n", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Delegate to the stream."""
        return getattr(self._stream, name)


def decimal_aligned(texts: Sequence[str], point: str = " ", digit: str = " ") -> list[str]:
    """Pad numbers at the right so that, right-justified, their decimal points are aligned.

    Args:
        texts: of one column; empty ones stay empty; of a range (``3.0 to 13``) the first number is aligned.
        point: character as wide as a decimal point.
        digit: character as wide as a digit.
    """
    tails = [len(text) - len(text.partition(" to ")[0].partition(".")[0]) for text in texts]
    longest = max((tail for tail, text in zip(tails, texts, strict=True) if text), default=0)
    pads = [(digit if tail else point) + digit * (longest - tail - 1) if tail < longest else "" for tail in tails]
    return [text + pad if text else text for text, pad in zip(texts, pads, strict=True)]


def marked(
    texts: Sequence[str], marks: Sequence[str], point: str = " ", digit: str = " ", hosts: Sequence[str] = ()
) -> list[str]:
    """Align numbers on their decimal points, each followed by its mark or, if others have one, a blank.

    `hosts` are host times that follow the numbers of the same places, aligned to the left.
    """
    room = digit if any(marks) else ""
    behind = [f" h{host}" if host else "" for host in hosts or [""] * len(texts)]
    most = max(map(len, behind), default=0)
    padded = zip(texts, marks, decimal_aligned(texts, point, digit), behind, strict=True)
    return [
        f"{text}{mark}{wide[len(text) :]}{room * (not mark)}{host}{digit * (most - len(host))}" if text else ""
        for text, mark, wide, host in padded
    ]
