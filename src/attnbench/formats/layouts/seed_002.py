"""seed-002: one log per batch and number of candidates, one line per number of cached tokens, and nine workbooks.

    logs/benchmark_bs{B}_nc{C}.log      KV Caches: 8, Candidate Embeddings: 128, Total time(ms): 123.45
    benchmark_results.xlsx              sheet results: one row per line of the logs
    benchmark_results_bs{B}.xlsx, benchmark_results_nc{C}.xlsx         the same rows of one batch, of one count

A step is a case of its own, or one of a series in which the histories of all users grow.

KV caches are the cached tokens of a user, candidate embeddings all rows that the step computes for a user: candidates
and new history.  The time is the mean, end to end if the wall clock was measured.  The files hold one backend; `notes`
says which.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnbench.errors import RunFileError, Unavailable, UsageError, absent, refusal
from attnbench.formats.layouts.base import Layout, imported_record, imported_run, imported_time, read_text, timed
from attnbench.formats.split import split
from attnbench.presentation.block import backend_name
from attnbench.presentation.serving import end_to_end, steps_of
from attnbench.record import Record, Run
from attnbench.store.files import is_file, is_folder, write_bytes
from attnbench.text import shown

NAME, WORKLOAD, ROW = "seed-002", "hstu-serving", "imported-step"
FILE = re.compile(r"benchmark_bs(\d+)_nc(\d+)\.log")
LINE = re.compile(r"KV Caches:\s*(\d+),\s*Candidate Embeddings:\s*(\d+),\s*Total time\(ms\):\s*([0-9.]+)")
"The seed's own expressions; what stands before them in a line is passed over."
EXPONENT = re.compile(r"(?:[eE][+-]?\d+)?")
"That Python may print of a time, and the seed's expression leaves out: of 1e3 it reads 1."
BOOK = re.compile(r"benchmark_results(_(bs|nc)\d+)?\.xlsx")
LOGS, RESULTS = "logs", "benchmark_results"
COLUMNS = ("file", "batch_size", "num_candidate", "kv_caches", "candidate_embeddings", "total_time_ms")
SHAPE = ("batch", "num_candidates", "cached", "new_tokens")
SERIES = "pool", "growth"
"Caches whose rows are timed over all steps of a series; `growth` has the time of each beside it."
LARGEST = 2**31
DECIMALS = 6


class Step(NamedTuple):
    """A line of a log."""

    batch: int
    candidates: int
    cached: int
    new: int
    ms: float

    @property
    def file(self) -> str:
        """The log that contains it."""
        return f"benchmark_bs{self.batch}_nc{self.candidates}.log"

    @property
    def line(self) -> str:
        """The line as the seed wrote it: plain decimals, never an exponent."""
        return (
            f"KV Caches: {self.cached}, Candidate Embeddings: {self.candidates + self.new}, "
            f"Total time(ms): {self.ms:.{DECIMALS}f}"
        )

    @property
    def row(self) -> tuple[Any, ...]:
        """See `COLUMNS`."""
        return (
            self.file,
            self.batch,
            self.candidates,
            self.cached,
            self.candidates + self.new,
            round(self.ms, DECIMALS),
        )


class Seed002(Layout):
    """Logs and workbooks of the serving sweep."""

    name = NAME
    workloads = (WORKLOAD,)
    title = "a folder: logs/benchmark_bs{B}_nc{C}.log and nine benchmark_results*.xlsx"

    def write(self, run: Run, path: str | Path) -> list[Path]:
        """Write a folder, or subfolders for each value of the axes that its columns cannot distinguish."""
        written = []
        for label, part in _parts(run).items():
            folder, steps = Path(path) / label, _steps(part)
            for (batch, candidates), some in _by(steps, "batch", "candidates").items():
                place = folder / LOGS / f"benchmark_bs{batch}_nc{candidates}.log"
                write_bytes(place, "".join(f"{step.line}\n" for step in some).encode())
                written.append(place)
            books = {RESULTS: ("results", steps)}
            for word, name in (("bs", "batch"), ("nc", "candidates")):
                books |= {f"{RESULTS}_{word}{value}": ("Sheet1", some) for (value,), some in _by(steps, name).items()}
            for stem, (sheet, some) in books.items():
                place = folder / f"{stem}.xlsx"
                write_bytes(place, _workbook(sheet, some))
                written.append(place)
        return written

    def left_there(self, path: str | Path, written: Collection[Path]) -> list[Path]:
        """Return the logs and workbooks of another run beside the written ones: `read` would take both for one run."""
        there = [one for folder in sorted({place.parent for place in written}) for one in sorted(folder.iterdir())]
        return [one for one in there if one not in written and (FILE.fullmatch(one.name) or BOOK.fullmatch(one.name))]

    def console(self, run: Run) -> str:
        """Return the lines of all logs, each below its name."""
        found = []
        for label, part in _parts(run).items():
            for (batch, candidates), some in _by(_steps(part), "batch", "candidates").items():
                place = Path(label) / LOGS / f"benchmark_bs{batch}_nc{candidates}.log"
                found += [f"{place}:", *(step.line for step in some)]
        return "\n".join(found)

    def notes(self, run: Run) -> tuple[str, ...]:
        """Return which backend is in the files, which are not, and what the time is."""
        records = _records(run)
        chosen, others = _chosen(records), sorted({backend_name(record) for record in records} - {_chosen(records)})
        notes = [f"{NAME}: {chosen} is in the files" + (f", not {', '.join(others)}" if others else "")]
        apart = [record for record in records if not steps_of(record)]
        if any(end_to_end(record) is None and record.time.timer != "imported" for record in apart if record.time):
            notes.append(
                f"{NAME}: the time is the GPU's alone: the wall clock was not read (--timer auto,wall or wall)"
            )
        return tuple(notes)

    def recognises(self, path: Path) -> bool:
        """Recognise a log or a workbook by its name, or a folder that has such files."""
        if is_file(path):
            return bool(FILE.fullmatch(path.name) or BOOK.fullmatch(path.name))
        return is_folder(path) and bool(_logs(path)[0] or _book(path))

    def read(self, path: str | Path) -> Run:
        """Return one record per line: of a log, of all logs of a folder, or of a workbook."""
        steps, _ = _read(Path(path))
        seen: dict[tuple[Any, ...], int] = {}
        records = []
        for step in steps:
            case = dict(zip(SHAPE, step[:4], strict=True))
            again = seen[step[:4]] = seen.get(step[:4], -1) + 1
            record = imported_record(NAME, case, ROW, imported_time(mean_ms=step.ms), workload=WORKLOAD)
            group = record.group if again == 0 else f"{record.group}#{again}"
            records.append(dataclasses.replace(record, replicate=again, group=group))
        return imported_run(NAME, path, records)

    def passed_over(self, path: str | Path) -> list[str]:
        """Return the names in the folder that are not part of the layout."""
        return _read(Path(path))[1]


# ── writing ────────────────────────────────────────────────────────────────────────────────────────


def _records(run: Run) -> list[Record]:
    """Return the timed records of serving steps; a series over a pool, or one that was interrupted, has none.

    Raises:
        UsageError: there is no such record.
    """
    records = [record for record in timed(run.records) if record.case.get("cache") not in SERIES or steps_of(record)]
    for record in records:
        if not all(type(record.case.get(name)) is int for name in SHAPE):
            raise UsageError(refusal(NAME, "workload", record.workload, "has no serving steps", f"a run of {WORKLOAD}"))
    if not records:
        raise UsageError(refusal(NAME, "records", 0, "have a time of a step", "a run of timed steps"))
    return records


def _chosen(records: Sequence[Record]) -> str:
    """Return the first backend of the run that has a time."""
    return backend_name(records[0])


def _parts(run: Run) -> dict[str, Run]:
    records = _records(run)
    chosen = _chosen(records)
    kept = tuple(record for record in records if backend_name(record) == chosen)
    others = {
        name
        for record in kept
        for name, value in record.case.items()
        if name not in SHAPE and kept[0].case.get(name) != value
    }
    # Each number of new tokens is another sweep: the seed's sweep has one.
    others |= {"new_tokens"} if len({record.case["new_tokens"] for record in kept}) > 1 else set()
    part = dataclasses.replace(run, records=kept)
    return split(part, sorted(others)) if others else {"": part}


def _steps(run: Run) -> list[Step]:
    found = []
    for record in run.records:
        batch, candidates, cached, new = (record.case[name] for name in SHAPE)
        whole = end_to_end(record) or record.time
        assert whole is not None  # guaranteed by `timed`
        for count, time in (steps_of(record) or {cached: whole}).items():
            mean = time.mean_ms
            assert mean is not None
            found.append(Step(batch, candidates, count, new, mean))
    return sorted(found, key=lambda step: step[:4])


def _by(steps: Iterable[Step], *names: str) -> dict[tuple[int, ...], list[Step]]:
    found: dict[tuple[int, ...], list[Step]] = {}
    for step in steps:
        found.setdefault(tuple(getattr(step, name) for name in names), []).append(step)
    return found


def _workbook(sheet: str, steps: Iterable[Step]) -> bytes:
    try:
        from openpyxl import Workbook
    except ImportError:
        raise Unavailable(f"{NAME}: module=openpyxl is not installed; pip install openpyxl") from None
    book = Workbook(write_only=True)
    page = book.create_sheet(sheet)
    page.append(list(COLUMNS))
    for step in steps:
        page.append(list(step.row))
    data = io.BytesIO()
    book.save(data)
    return data.getvalue()


# ── reading ────────────────────────────────────────────────────────────────────────────────────────


def _read(path: Path) -> tuple[list[Step], list[str]]:
    """Return the steps, and the names that were ignored.

    Raises:
        RunFileError: nothing there has this layout, or a part of it is broken.
    """
    if is_file(path):
        return list(_from_book(path) if path.suffix == ".xlsx" else _from_log(path)), []
    logs, strange = _logs(path)
    if logs:
        return [step for log in logs for step in _from_log(log)], strange
    if book := _book(path):
        return list(_from_book(book)), strange
    wrong = f"has nothing of {NAME}" if is_folder(path) else absent(path)
    raise RunFileError(
        refusal("import", "path", path, wrong, f"{LOGS}/benchmark_bs{{B}}_nc{{C}}.log or {RESULTS}.xlsx")
    )


def _logs(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the logs of a folder, by batch and candidates, and the names that are not logs."""
    inside = folder / LOGS if is_folder(folder / LOGS) else folder
    found: list[tuple[list[int], Path]] = []
    strange = []
    try:
        for path in sorted(inside.iterdir()):
            if match := FILE.fullmatch(path.name):
                found.append(([int(one) for one in match.groups()], path))
            elif not BOOK.fullmatch(path.name):
                strange.append(path.name)
    except OSError:
        return [], []
    return [path for _, path in sorted(found)], strange


def _book(folder: Path) -> Path | None:
    path = folder / f"{RESULTS}.xlsx"
    return path if is_file(path) else None


def _from_log(path: Path) -> Iterator[Step]:
    match = FILE.fullmatch(path.name)
    if match is None:
        raise RunFileError(
            refusal("import", "file", path.name, "is not a log by its name", "benchmark_bs{B}_nc{C}.log")
        )
    found = False
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if one := LINE.search(line):
            found = True
            exponent = EXPONENT.match(line, one.end())
            *counts, time = one.groups()
            yield _step(f"{path}:{number}", [*match.groups(), *counts, time + (exponent.group() if exponent else "")])
    if not found:
        raise RunFileError(
            refusal(str(path), "lines", 0, "are of steps", "KV Caches: …, Candidate Embeddings: …, Total time(ms): …")
        )


def _from_book(path: Path) -> Iterator[Step]:
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise Unavailable(f"{NAME}: module=openpyxl is not installed; pip install openpyxl") from None
    try:
        book = load_workbook(path, read_only=True, data_only=True)
        rows = list(book.worksheets[0].iter_rows(values_only=True))
        book.close()
    except Exception as error:  # openpyxl passes on all errors of its parsers
        raise RunFileError(
            refusal("import", "path", path, f"cannot be read ({type(error).__name__})", "a workbook")
        ) from None
    header = tuple(str(one) for one in rows[0]) if rows else ()
    if header != COLUMNS:
        raise RunFileError(refusal(str(path), "header", shown(",".join(header)), f"is not {NAME}", ",".join(COLUMNS)))
    for number, row in enumerate(rows[1:], 2):
        yield _step(f"{path}:{number}", [str(one) for one in row[1:]])


def _step(who: str, fields: Sequence[str]) -> Step:
    names = COLUMNS[1:]
    values = []
    for name, text in zip(names, fields, strict=True):
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        whole = name != "total_time_ms"
        if not 0 <= value <= LARGEST or (whole and value != int(value)) or (not whole and value == 0):
            accepted = f"a whole number from 0 to {LARGEST}" if whole else "milliseconds above 0"
            raise RunFileError(refusal(who, name, shown(text), "cannot be used", accepted))
        values.append(value)
    batch, candidates, cached, rows = (int(value) for value in values[:4])
    if rows < candidates or not batch:
        wrong = "is under num_candidate" if batch else "is no batch"
        name, value = ("candidate_embeddings", rows) if batch else ("batch_size", batch)
        raise RunFileError(refusal(who, name, value, wrong, f"at least {candidates if batch else 1}"))
    return Step(batch, candidates, cached, rows - candidates, values[4])


LAYOUT = Seed002()
