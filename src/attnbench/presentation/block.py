"""A table, independent of the output format: columns, lines of texts, losses, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnbench.presentation.conditions import Conditions
from attnbench.record import Record, Status
from attnbench.store.replicates import Processes

LEGEND = (
    "In a table * is the fastest row, ± the longer arm of the 95 % interval, and a speed-up above 1 faster than the "
    "baseline; spread, with replicates, is the highest less the lowest median of the processes."
)
"""Meaning of the signs in a table, for the help and the end of a Markdown page."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, and its priority on a narrow page."""

    key: str
    title: str
    rank: int
    "0 is always shown; columns of the highest rank are dropped first"
    number: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    """One row: the texts of its cells by column key, and the record they come from."""

    record: Record
    cells: Mapping[str, str]
    fastest: bool = False
    processes: Processes | None = None
    "for a run with replicates: the processes whose values `record` combines"


Reason = tuple[str, Status, str]
"""A backend, how it ended and why."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A backend without a time, and the reason."""

    backend: str
    status: Status
    reason: str
    where: str = ""

    @property
    def reason_of(self) -> Reason:
        """The key that equal losses in several cases share."""
        return (self.backend, self.status, self.reason)


@dataclass(frozen=True, slots=True)
class Block:
    """One table with the texts above and below it."""

    title: str
    conditions: Conditions | None
    columns: Sequence[Column] = ()
    lines: Sequence[Line] = ()
    lost: Sequence[Lost] = ()
    notes: Sequence[str] = field(default=())
    reading: Sequence[str] = field(default=())
    "interpretation of the table (`presentation.reading`)"
    part: str = ""
    "the part of the case it shows, if not the times of its rows"

    @property
    def heading(self) -> str:
        """The title, and the part shown."""
        return f"{self.title} · {self.part}" if self.part else self.title


@dataclass(frozen=True, slots=True)
class Page:
    """All tables of a run, and losses that apply to all of them."""

    blocks: Sequence[Block]
    lost: Sequence[Lost]


def filled(columns: Sequence[Column], lines: Sequence[Line]) -> list[Column]:
    """Return the columns in which at least one line has a text."""
    return [column for column in columns if any(line.cells.get(column.key) for line in lines)]


def backend_name(record: Record) -> str:
    """Return ``flex[bm128]``: the backend, with its configuration if it has one."""
    name, config = record.backend, f"[{record.config}]" if record.config else ""
    return name if name.endswith(config) else name + config
