"""What an exporter is: one file in this folder with an ``EXPORTER``, found by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnbench.record import Run


def _anywhere() -> None:
    """Needs nothing that could be missing."""


@dataclass(frozen=True, slots=True)
class Exporter:
    """A file format for the rows of a run."""

    title: str
    "one line for people"
    text: bool
    "may go to the terminal or a pipe"
    render: Callable[[Run], bytes]
    "the whole file"
    ready: Callable[[], None] = _anywhere
    "raises `Unavailable` where a library that it needs is missing"


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"How a cell begins that some spreadsheet takes for a formula; the wide signs are those of East Asian input."


def harmless(text: str) -> str:
    """Quote a text that a spreadsheet would take for a formula and run."""
    return f"'{text}" if text.startswith(FORMULA) else text
