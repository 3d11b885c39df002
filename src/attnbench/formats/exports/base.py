"""The interface of an exporter: one file in this folder with an ``EXPORTER``, found by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnbench.record import Run


def _anywhere() -> None:
    """Check of an exporter that needs no library."""


@dataclass(frozen=True, slots=True)
class Exporter:
    """A file format for the rows of a run."""

    title: str
    "one-line description"
    text: bool
    "whether it may go to a terminal or pipe"
    render: Callable[[Run], bytes]
    "returns the whole file"
    ready: Callable[[], None] = _anywhere
    "raises `Unavailable` if a library is missing"


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"Beginnings of a cell that some spreadsheets treat as a formula; the wide signs come from East Asian input."


def harmless(text: str) -> str:
    """Quote a text that a spreadsheet would execute as a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text
