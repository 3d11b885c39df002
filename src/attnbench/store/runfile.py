"""The run file: one JSON document per run, one line per record (docs/run-file.md).

Written whole, through a temporary file and a rename, so that a kill at any moment leaves the old file or the new one.
Read as untrusted data: every field is checked and every statistic computed again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

from attnbench import record
from attnbench.errors import RunFileError, refusal, unreadable
from attnbench.record import SCHEMA, PowerSeries, Record, Run, Time, Yardstick
from attnbench.store.derive import derive
from attnbench.store.files import write_bytes
from attnbench.store.parsing import parse
from attnbench.text import shown

# A tenth of a nanosecond, a microsecond, …: below the resolution of any source, so files stay small and lose nothing.
DIGITS = {"samples_ms": 7, "kernel_ms": 7, "at_s": 6, "sm_mhz": 2, "watts": 3, "celsius": 1}
LONGEST_MS = 1e12
"Thirty years: a longer time is not a measurement."
SERIES = {"at_s": (0.0, LONGEST_MS), "sm_mhz": (1e-3, 1e12), "watts": (0.0, 1e12), "celsius": (-300.0, 1e12)}
"Minimum and maximum of series recorded beside samples."
TIMES = tuple(
    field.name for field in dataclasses.fields(Time) if field.name.endswith("_ms") and field.name != "samples_ms"
)
COUNTS = {
    "memory": ("peak_allocated_mb", "peak_reserved_mb"),
    "work": ("flops", "bytes", "executed_flops"),
    "rate": ("tflops", "executed_tflops", "gbps", "percent_of_peak"),
    "speedup": ("ratio", "ci_low", "ci_high"),
}
"Non-negative fields of a record's blocks: counts, sizes and rates."
OF = {block: attrgetter(*names) for block, names in COUNTS.items()}
LARGEST_COUNT = 1e30
"Also the limit of a ratio: `stats.ratio.factor` returns none beyond it."
LONGEST_STARTED = 32
ACCEPTED = "a run file written by attnbench run"


class Writer:
    """Writes a growing run: lines of records that were already written are reused."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        # Keep the record beside its line, or its id() could be reused by another record.
        self._lines: dict[int, tuple[Record, str]] = {}

    def write(self, run: Run) -> Path:
        """Replace the file by `run`, and return its path.

        Raises:
            UsageError: the path cannot be written.
        """
        self._lines = {id(item): self._lines.get(id(item)) or (item, line(item)) for item in run.records}
        write_bytes(self.path, document(head(run), [self._lines[id(item)][1] for item in run.records]).encode())
        return self.path


def write(run: Run, path: str | Path) -> Path:
    """Write `run` to `path` once.

    Raises:
        UsageError: the path cannot be written.
    """
    return Writer(path).write(run)


def dumps(run: Run) -> str:
    """Return the text of the run file."""
    return document(head(run), [line(item) for item in run.records])


def head(run: Run) -> str:
    """Return the part of a run file about the run itself, without its records."""
    data = record.to_dict(dataclasses.replace(run, records=()))
    del data["records"]
    return _open(data)


def line(item: Record) -> str:
    """Return the line of a record."""
    return _json(_rounded(record.to_dict(item)))


def document(head: str, lines: list[str]) -> str:
    """Return a run file from its parts, the results of `head` and `line`."""
    body = ",\n".join(lines)
    return f'{{"schema": {SCHEMA},\n"run": {head},\n"records": [\n{body}\n]}}\n'


def read(path: str | Path, *, statistics: bool = True) -> Run:
    """Read a run file; statistics are computed from the samples, whatever the file says.

    Args:
        path: path of the file.
        statistics: compute them; False if the caller needs only samples, status and conditions.

    Raises:
        RunFileError: the file is missing, truncated, of a newer schema, or not a run file.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise RunFileError(refusal("run file", "path", path, unreadable(error), ACCEPTED)) from None
    return loads(text, who=str(path), statistics=statistics)


def loads(text: str, who: str = "run file", *, statistics: bool = True) -> Run:
    """Build a run from the text of a run file; errors name `who`, `statistics` as in `read`."""
    data = parse(text, who, ACCEPTED)
    try:
        head, records = _envelope(data)
        run = record.from_dict(Run, {**head, "records": records})
        for index, item in enumerate(run.records):
            check_record(item, f"records[{index}]")
        return derive(run) if statistics else run
    except RunFileError as error:
        raise RunFileError(f"{who}: {str(error).removeprefix('run.')}") from None
    except (OverflowError, RecursionError) as error:
        raise RunFileError(refusal(who, "value", error, "cannot be held", ACCEPTED)) from None


def default_path(run: Run, out_dir: str | Path = "results") -> Path:
    """Return `<started>-<suite>-<id>.json` in `out_dir`, valid on every file system."""
    started = re.sub(r"[^0-9TZ]", "", run.started.split("+")[0].split(".")[0])
    suite = re.sub(r"[^A-Za-z0-9._-]+", "-", run.suite).strip("-.") or "run"
    return Path(out_dir) / f"{started[:LONGEST_STARTED]}-{suite[:80]}-{run.id}.json"


def new_id() -> str:
    """Return eight random hexadecimal digits."""
    return secrets.token_hex(4)


def now() -> str:
    """Return the current time in the form of `Run.started`: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _open(data: dict[str, Any]) -> str:
    """Return JSON with one field per line; a list of objects has one object per line."""
    fields = []
    for name, value in data.items():
        listed = isinstance(value, list) and value and isinstance(value[0], dict)
        text = "[\n    " + ",\n    ".join(map(_json, value)) + "]" if listed else _json(value)
        fields.append(f"{_json(name)}: {text}")
    return "{\n  " + ",\n  ".join(fields) + "}"


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def _rounded(data: dict[str, Any]) -> dict[str, Any]:
    for name, value in data.items():
        if isinstance(value, dict):
            _rounded(value)
        elif name in DIGITS and isinstance(value, list):
            data[name] = [None if item is None else round(item, DIGITS[name]) for item in value]
    return data


def _envelope(data: Any) -> tuple[dict[str, Any], list[Any]]:
    if not isinstance(data, dict) or "schema" not in data:
        raise RunFileError(f"schema: missing field; {ACCEPTED}")
    schema = data["schema"]
    if type(schema) is not int or schema < 1:
        raise RunFileError(f"schema={schema!r} is not a version; 1 to {SCHEMA}")
    if schema > SCHEMA:
        raise RunFileError(f"schema={schema} is newer than this attnbench reads; at most {SCHEMA}; upgrade attnbench")
    if "load" in data:
        raise RunFileError(f"content=a load is no run; {ACCEPTED}; attnbench show and report read it")
    strange = sorted(set(data) - {"schema", "run", "records"})
    if strange:
        raise RunFileError(f"{strange[0]}: unknown field; one of schema, run, records")
    if not isinstance(data.get("run"), dict):
        raise RunFileError("run: missing field or not an object; what was run")
    if not isinstance(data.get("records"), list):
        raise RunFileError("records: missing field or not a list; a list of records")
    if "records" in data["run"]:
        raise RunFileError("run.records: unknown field; records stand beside run")
    return data["run"], data["records"]


def check_record(item: Record, where: str) -> None:
    """Refuse impossible samples and series of inconsistent lengths.

    Raises:
        RunFileError: the message begins with `where`, the record's place in its file, and names the field.
    """
    times = {"time": item.time, **{f"phases.{name}": time for name, time in item.phases.items()}}
    times |= {f"timers.{name}": time for name, time in item.timers.items()}
    for name, time in times.items():
        if time is not None:
            _check_samples(time, f"{where}.{name}")
    for name, block in (("memory", item.memory), ("work", item.work), ("rate", item.rate), ("speedup", item.speedup)):
        if block is not None:
            _check_counts(COUNTS[name], OF[name](block), f"{where}.{name}")
    if item.ceilings:
        _check_counts(item.ceilings, item.ceilings.values(), f"{where}.ceilings")
    for name, yardstick in item.yardsticks.items():
        _check_yardstick(yardstick, item.time, f"{where}.yardsticks.{name}")
    if isinstance(item.power_w, PowerSeries):
        for name in ("at_s", "watts", "celsius"):
            _check_beside(item.power_w, name, f"{where}.power_w", len(item.power_w.at_s))


def _check_counts(names: Iterable[str], values: Iterable[float | None], where: str) -> None:
    """Refuse numbers that cannot be a count, size, rate or ratio."""
    for name, value in zip(names, values, strict=True):
        if value is not None and not 0 <= value <= LARGEST_COUNT:
            raise RunFileError(f"{where}.{name}={shown(value)} is no quantity; 0 to {LARGEST_COUNT:g}")


def _check_samples(time: Time, where: str) -> None:
    for name in TIMES:
        value = getattr(time, name)
        if value is not None and not 0 <= value < LONGEST_MS:
            raise RunFileError(f"{where}.{name}={value} is not a time; 0 to {LONGEST_MS:g} milliseconds")
    _check_series(time, where, ("rounds", "at_s", "sm_mhz"))


def _check_yardstick(yardstick: Yardstick, time: Time | None, where: str) -> None:
    if time is None:
        raise RunFileError(f"{where} stands beside no time; a record with one")
    _check_counts(("flops", "bytes"), (yardstick.flops, yardstick.bytes), where)
    if not yardstick.samples_ms or len(yardstick.rounds) != len(yardstick.samples_ms):
        counts = f"{len(yardstick.samples_ms)} samples in {len(yardstick.rounds)} rounds"
        raise RunFileError(f"{where} has {counts}; at least one, each with its round")
    _check_series(yardstick, where, ("sm_mhz",))


def _check_series(item: Time | Yardstick, where: str, beside: Sequence[str]) -> None:
    for index, sample in enumerate(item.samples_ms):
        if not 0 <= sample < LONGEST_MS:
            raise RunFileError(f"{where}.samples_ms[{index}]={sample} is not a time; 0 to {LONGEST_MS:g} milliseconds")
    for name in beside:
        _check_beside(item, name, where, len(item.samples_ms))


def _check_beside(item: Time | Yardstick | PowerSeries, name: str, where: str, wanted: int) -> None:
    """Refuse a series whose length does not match the samples, or with impossible values."""
    values = getattr(item, name)
    if values and len(values) != wanted:
        raise RunFileError(f"{where}.{name} has {len(values)} values; none or as many as samples, {wanted}")
    least, most = SERIES.get(name, (-math.inf, math.inf))
    for index, value in enumerate(values):
        if value is not None and not least <= value <= most:
            raise RunFileError(f"{where}.{name}[{index}]={value} cannot be; {least:g} to {most:g}, or null")
