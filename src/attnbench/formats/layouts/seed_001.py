"""seed-001: one CSV per sweep, with rows in order of mean time for each head dimension and length.

Relative performance is the mean time of `Reference` over the row's, in percent.  `Reference` is FlashAttention 2, or
torch's own copy of it if that was not measured; `V3` is FlashAttention 3.  No column says which, so `notes` does.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnbench.errors import RunFileError, UsageError, refusal
from attnbench.formats.exports.base import harmless
from attnbench.formats.layouts.base import (
    IMPORTED,
    Layout,
    imported_record,
    imported_run,
    imported_time,
    mean_of,
    number,
    read_text,
    timed,
)
from attnbench.formats.split import part_path, split
from attnbench.presentation.block import backend_name
from attnbench.presentation.blocks import lost_of
from attnbench.record import Rate, Record, Run, Speedup
from attnbench.store.files import is_file, write_bytes

COLUMNS = ("Kernel Name", "d_head", "seq_len", "Mean", "Median", "Min", "Max", "StdDev", "Relative Performance",
           "Attn TFLOP/s")  # fmt: skip
REFERENCE, V3 = "Reference", "V3"
REFERENCES = (REFERENCE, "flash-attn-2", "sdpa-flash")
"Candidates for the reference; the first that was measured is chosen."
LARGEST = 2**31
THIRD = (V3, "flash-attn-3", "fa3-fwd")


class Seed001(Layout):
    """The table of the flash sweep."""

    name = "seed-001"
    workloads = ("attention",)
    title = "CSV a sweep: Kernel Name, d_head, seq_len, Mean, Median, …, Relative Performance, Attn TFLOP/s"

    def write(self, run: Run, path: str | Path) -> list[Path]:
        """Write one CSV, or one for each value of the axes that its columns cannot distinguish."""
        parts = _sweeps(run)
        paths = [part_path(path, label) for label in parts]
        for place, part in zip(paths, parts.values(), strict=True):
            write_bytes(place, _table(part, _reference(run), _third(run)).encode())
        return paths

    def console(self, run: Run) -> str:
        """Return the same tables, one below the other."""
        return "\n".join(_table(part, _reference(run), _third(run)) for part in _sweeps(run).values())

    def notes(self, run: Run) -> tuple[str, ...]:
        """Return which backend is `Reference`, and which records are not in the table."""
        return tuple(_notes(run))

    def recognises(self, path: Path) -> bool:
        """Recognise a file whose first line is the header."""
        if not is_file(path):
            return False
        try:
            file = path.open("rb")
        except OSError:
            return False
        with file:
            return file.readline(400).strip().lstrip(b"\xef\xbb\xbf") == ",".join(COLUMNS).encode()

    def read(self, path: str | Path) -> Run:
        """Return rows as records; batch, precision and everything else without a column are missing."""
        reader = csv.DictReader(io.StringIO(read_text(path)))
        if tuple(reader.fieldnames or ()) != COLUMNS:
            found = ",".join(reader.fieldnames or ())[:120]
            raise RunFileError(refusal(str(path), "header", found, "is not seed-001", ",".join(COLUMNS)))
        try:
            rows = list(reader)
        except csv.Error as error:
            raise RunFileError(refusal(str(path), "line", reader.line_num + 1, f"cannot be read ({error})",
                                       f"{len(COLUMNS)} fields")) from None  # fmt: skip
        return imported_run(self.name, path, [_record(f"{path}:{line}", row) for line, row in enumerate(rows, 2)])


def _sweeps(run: Run) -> dict[str, Run]:
    """Return the parts in which a head dimension and a length identify one case: one file per sweep."""
    records = timed(run.records)
    if not records:
        raise UsageError(refusal("seed-001", "records", 0, "have a time", "a run with at least one timed record"))
    for record in records:
        if not all(type(record.case.get(name)) is int for name in ("headdim", "seqlen")):
            wrong = "has no headdim and seqlen"
            raise UsageError(refusal("seed-001", "workload", record.workload, wrong, "a run of attention"))
    seen: dict[tuple[int, int], Record] = {}
    axes: dict[str, None] = {}
    for record in records:
        first = seen.setdefault(_place(record), record)
        axes |= dict.fromkeys(name for name, value in record.case.items() if first.case.get(name) != value)
    parts = split(run, list(axes)) if axes else {"": run}
    return {label: part for label, part in parts.items() if timed(part.records)}


def _place(record: Record) -> tuple[int, int]:
    return record.case["headdim"], record.case["seqlen"]


def _table(run: Run, reference: str | None, third: str | None) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    records = timed(run.records)
    for place in sorted({_place(record) for record in records}):
        writer.writerows(_rows([record for record in records if _place(record) == place], reference, third))
    return text.getvalue()


def _rows(records: Sequence[Record], reference: str | None, third: str | None) -> Iterator[list[str]]:
    base = next((mean_of(record) for record in records if record.backend == reference), None)
    for record in sorted(records, key=mean_of):
        time, mean = record.time, mean_of(record)
        assert time is not None  # guaranteed by `timed`
        std = 0.0 if time.std_ms is None and time.num_samples == 1 else time.std_ms
        tflops = record.work.flops / mean / 1e9 if record.work else record.rate.tflops if record.rate else None
        name = {reference: REFERENCE, third: V3}.get(record.backend, backend_name(record))
        times = [_number(value, 6) for value in (mean, time.median_ms, time.min_ms, time.max_ms, std)]
        relative = _number(_relative(record, base), 4)
        yield [harmless(name), *map(str, _place(record)), *times, relative, _number(tflops, 4)]


def _relative(record: Record, base: float | None) -> float | None:
    if record.time is not None and record.time.timer == IMPORTED and record.speedup is not None:
        return 100 * record.speedup.ratio  # computed from more digits than the file's means have
    return None if base is None else 100 * base / mean_of(record)


def _reference(run: Run) -> str | None:
    measured = {record.backend for record in timed(run.records)}
    return next((name for name in REFERENCES if name in measured), None)


def _third(run: Run) -> str | None:
    measured = {record.backend for record in timed(run.records)}
    return next((name for name in THIRD if name in measured), None)


def _notes(run: Run) -> Iterator[str]:
    reference = _reference(run)
    if reference is None:
        yield f"seed-001: no {REFERENCE} row: neither {' nor '.join(REFERENCES[1:])} was measured"
    elif reference == REFERENCES[2]:
        yield f"seed-001: {REFERENCE} is torch's own SDPA flash: flash-attn-2 was not measured"
    if (third := _third(run)) and third != V3:
        yield f"seed-001: {V3} is {third}"
    for item in lost_of(run.records):
        where = f" ({item.where})" if item.where else ""
        yield f"seed-001: not in the table: {item.backend}{where}: {item.status.value}: {item.reason}"


def _record(who: str, row: dict[str, str | None]) -> Record:
    if None in row or any(value is None for value in row.values()):
        raise RunFileError(refusal(who, "fields", sum(value is not None for value in row.values()), "are not a row",
                                   f"{len(COLUMNS)} fields"))  # fmt: skip
    values = {name: number(who, name, row[name] or "") for name in COLUMNS[1:]}
    case = {}
    for axis, name in (("headdim", "d_head"), ("seqlen", "seq_len")):
        value = values[name]
        if value is None or value != int(value) or not 1 <= value <= LARGEST:
            raise RunFileError(refusal(who, name, row[name], "is not a size", f"a whole number from 1 to {LARGEST}"))
        case[axis] = int(value)
    if values["Mean"] is None or values["Mean"] <= 0:
        raise RunFileError(refusal(who, "Mean", row["Mean"], "is not a time", "milliseconds above 0"))
    relative, tflops = values["Relative Performance"], values["Attn TFLOP/s"]
    speedup = None if relative is None else Speedup(baseline=REFERENCE, ratio=relative / 100)
    time = imported_time(mean_ms=values["Mean"], median_ms=values["Median"], min_ms=values["Min"],
                         max_ms=values["Max"], std_ms=values["StdDev"])  # fmt: skip
    rate = None if tflops is None else Rate(tflops=tflops)
    name = (row["Kernel Name"] or "").strip() or "unknown"
    return imported_record("seed-001", case, name, time, rate=rate, speedup=speedup)


def _number(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:.{decimals}f}"


LAYOUT = Seed001()
