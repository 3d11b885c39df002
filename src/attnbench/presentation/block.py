"""A table before anybody draws it: columns, lines of texts, what was lost, notes."""

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
"""What the signs of a table mean: said once, in the help and at the end of a Markdown page."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what it is called, and how soon it goes when the page is narrow."""

    key: str
    title: str
    rank: int
    "0 stays; the highest goes first"
    number: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    """One row: the texts of its cells by column key, and the record they are drawn from."""

    record: Record
    cells: Mapping[str, str]
    fastest: bool = False
    processes: Processes | None = None
    "of a run with replicates: whose figures `record` combines"


Reason = tuple[str, Status, str]
"""A backend, how it ended and why."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A backend without a time, and why."""

    backend: str
    status: Status
    reason: str
    where: str = ""

    @property
    def reason_of(self) -> Reason:
        """What one and the same loss in several cases has in common."""
        return (self.backend, self.status, self.reason)


@dataclass(frozen=True, slots=True)
class Block:
    """One table with what stands above and below it."""

    title: str
    conditions: Conditions | None
    columns: Sequence[Column] = ()
    lines: Sequence[Line] = ()
    lost: Sequence[Lost] = ()
    notes: Sequence[str] = field(default=())
    reading: Sequence[str] = field(default=())
    "what the table means (`presentation.reading`)"
    part: str = ""
    "what of the case it shows, where not the times of its rows"

    @property
    def heading(self) -> str:
        """The title, and what of it is shown."""
        return f"{self.title} · {self.part}" if self.part else self.title


@dataclass(frozen=True, slots=True)
class Page:
    """All of a run: its tables, and what was lost everywhere."""

    blocks: Sequence[Block]
    lost: Sequence[Lost]


def filled(columns: Sequence[Column], lines: Sequence[Line]) -> list[Column]:
    """The columns in which at least one line has a text."""
    return [column for column in columns if any(line.cells.get(column.key) for line in lines)]


def backend_name(record: Record) -> str:
    """``flex[bm128]``: the backend, with its configuration where it has one."""
    name, config = record.backend, f"[{record.config}]" if record.config else ""
    return name if name.endswith(config) else name + config
