"""What a layout is: one file in this folder with a ``LAYOUT``, found by its name.

A layout is a file format that people had before us.  It is written to the letter, so that their
scripts and spreadsheets go on working, with its own definitions even where our tables define better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from attnbench.errors import RunFileError, refusal
from attnbench.record import Record, Run, Status, Time
from attnbench.store.runfile import new_id, now

IMPORTED = "imported"
"The `timer` of a time that another program's file says."


class Layout(ABC):
    """A seed's files: written from a run, read back as far as they carry one."""

    name: ClassVar[str]
    title: ClassVar[str]
    workloads: ClassVar[tuple[str, ...]] = ()
    "of whose runs it can be written; none: of any"

    @abstractmethod
    def write(self, run: Run, path: str | Path) -> list[Path]:
        """Write `run` to `path` and return the files made.

        Raises:
            UsageError: the run does not fit the layout, or the path cannot be written.
        """

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether the file or folder looks like one of this layout."""

    @abstractmethod
    def read(self, path: str | Path) -> Run:
        """Read a file back; what it does not carry is None.

        Raises:
            RunFileError: it is not of this layout; the message names line and field.
        """

    def passed_over(self, path: str | Path) -> list[str]:
        """Names of files beside those that `read` takes, of a layout that is a folder."""
        return []

    def console(self, run: Run) -> str | None:
        """What the seed's program printed after such a run; None where it printed nothing of its own."""
        return None

    def notes(self, run: Run) -> tuple[str, ...]:
        """What a reader must know and the layout has no place for; for stderr, one line each."""
        return ()


def imported_run(layout: str, path: str | Path, records: list[Record]) -> Run:
    """A run around imported records; when it really ran nobody knows, so `started` is the import."""
    run_id, name = new_id(), Path(path).name
    return Run(id=run_id, suite=layout, command=f"attnbench import {name}", started=now(), records=tuple(records))


def imported_record(
    layout: str, case: dict[str, Any], backend: str, time: Time, *, workload: str = "attention", **blocks: Any
) -> Record:
    """A passed record of which only times are known."""
    case_id = "-".join(f"{name}{value}" for name, value in case.items()) or "unknown"
    note = f"imported from a {layout} file: rates and speed-ups are over means, as it defines them"
    return Record(
        workload=workload,
        case=case,
        case_id=case_id,
        group=case_id,
        backend=backend,
        status=Status.PASSED,
        notes=(note,),
        time=time,
        **blocks,
    )


def imported_time(
    *,
    mean_ms: float | None,
    median_ms: float | None = None,
    min_ms: float | None = None,
    max_ms: float | None = None,
    std_ms: float | None = None,
    p95_ms: float | None = None,
    p99_ms: float | None = None,
    num_samples: int | None = None,
) -> Time:
    """A time without samples."""
    return Time(
        timer=IMPORTED,
        l2=None,
        regime=None,
        stopped_by=None,
        num_samples=num_samples,
        median_ms=median_ms,
        mean_ms=mean_ms,
        std_ms=std_ms,
        min_ms=min_ms,
        max_ms=max_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
    )


def timed(records: Iterable[Record]) -> list[Record]:
    """Records with a mean time: the seeds' files hold nothing else."""
    return [record for record in records if record.time is not None and record.time.mean_ms]


def mean_of(record: Record) -> float:
    """Mean time of one of `timed`, in milliseconds."""
    assert record.time is not None  # `timed` holds no other
    assert record.time.mean_ms is not None
    return record.time.mean_ms


def read_text(path: str | Path) -> str:
    """Text of a file to import.

    Raises:
        RunFileError: it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or "is not text in UTF-8"
        raise RunFileError(refusal("import", "path", path, f"cannot be read ({words})", "a file to import")) from None


def number(who: str, field: str, text: str) -> float | None:
    """A number of a file, None for an empty field.

    Raises:
        RunFileError: it is not a finite number; the message names the field.
    """
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value or value in (float("inf"), float("-inf")):
        raise RunFileError(refusal(who, field, text, "is not a number", "a finite number or nothing"))
    return value
