"""The interface of a layout: one file in this folder with a ``LAYOUT``, found by its name.

A layout is the file format of an older script.  It is reproduced exactly, so that people's scripts and spreadsheets
keep working, with the script's own definitions even if attnbench's tables have better ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, ClassVar

from attnbench.errors import RunFileError, refusal, unreadable
from attnbench.record import Record, Run, Status, Time
from attnbench.store.runfile import check_record, new_id, now

IMPORTED = "imported"
"The `timer` of a time from another program's file."


class Layout(ABC):
    """A seed's files: written from a run, and read as far as they hold one."""

    name: ClassVar[str]
    title: ClassVar[str]
    workloads: ClassVar[tuple[str, ...]] = ()
    "workloads of runs that it can write; empty: any"
    pictures: ClassVar[bool] = False
    "its script drew pictures: `run --layout` writes them beside the run file"

    @abstractmethod
    def write(self, run: Run, path: str | Path) -> list[Path]:
        """Write `run` to `path` and return the files written.

        Raises:
            UsageError: the run does not fit the layout, or the path cannot be written.
        """

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Return whether the file or folder looks like this layout."""

    @abstractmethod
    def read(self, path: str | Path) -> Run:
        """Read a file back; values that it does not hold are None.

        Raises:
            RunFileError: the file does not have this layout; the message names line and field.
        """

    def passed_over(self, path: str | Path) -> list[str]:
        """Return the names of files in a folder layout that `read` ignores."""
        return []

    def left_there(self, path: str | Path, written: Collection[Path]) -> list[Path]:
        """Return the files in a folder layout that an earlier `write` left there, and this one did not replace."""
        return []

    def console(self, run: Run) -> str | None:
        """Return the output of the seed's program for such a run; None if it had none."""
        return None

    def notes(self, run: Run) -> tuple[str, ...]:
        """Return, for stderr, one-line notes about the run for which the layout has no place."""
        return ()


def imported_run(layout: str, path: str | Path, records: list[Record]) -> Run:
    """Return a run with imported records; its real time is unknown, so `started` is the time of the import.

    Raises:
        RunFileError: a figure that a run file could not hold either, such as a time of 1e308 ms.
    """
    for index, record in enumerate(records, 1):
        check_record(record, f"{path}: row {index}")
    run_id, name = new_id(), Path(path).name
    return Run(id=run_id, suite=layout, command=f"attnbench import {name}", started=now(), records=tuple(records))


def imported_record(
    layout: str, case: dict[str, Any], backend: str, time: Time, *, workload: str = "attention", **blocks: Any
) -> Record:
    """Return a passed record of which only times are known."""
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
    """Return a time without samples."""
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
    """Return the records with a mean time: the seeds' files hold nothing else."""
    return [record for record in records if record.time is not None and record.time.mean_ms]


def mean_of(record: Record) -> float:
    """Return the mean time of one of `timed`, in milliseconds."""
    assert record.time is not None  # guaranteed by `timed`
    assert record.time.mean_ms is not None
    return record.time.mean_ms


def read_text(path: str | Path) -> str:
    """Return the text of a file to import.

    Raises:
        RunFileError: it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise RunFileError(refusal("import", "path", path, unreadable(error), "a file to import")) from None


def number(who: str, field: str, text: str) -> float | None:
    """Return a number of a file; None for an empty field.

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
