"""A run as stored in the history: its lines unchanged, and the points of its series."""

from __future__ import annotations

import hashlib
import json
import statistics
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from attnbench import record
from attnbench.record import Record, Run, Status, Time
from attnbench.store import runfile
from attnbench.store.environments import device_name, environment_of

SERIES = ("workload", "case_id", "backend", "config", "machine", "timer", "l2", "regime", "input", "lock_clocks")
"""The key of a series: times that differ in any of these are never compared."""

LARGEST = 2**31 - 1
"""Largest whole number of a column; a larger one cannot be a real count."""

LEVEL = 3
"""Compression level of zlib: level 6 is 3 % smaller and takes twice as long."""

Identity = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One record's time by one timer, or its outcome if it has no time."""

    series: Identity
    "values of `SERIES`"
    place: int
    "of the record in its run"
    environment: str | None
    "as JSON"
    values: Mapping[str, Any]
    "the other columns"


@dataclass(frozen=True, slots=True)
class Entry:
    """The data written for one run."""

    run: Mapping[str, Any]
    "columns of the run"
    bodies: Sequence[bytes]
    "one per record"
    points: Sequence[Point]


def entry_of(run: Run) -> Entry:
    """Prepare a run before its transaction, to keep the transaction short."""
    head, lines = runfile.head(run), [runfile.line(item) for item in run.records]
    return entry_from(run, head, lines)


def entry_from(run: Run, head: str, lines: Sequence[str]) -> Entry:
    """Prepare a run whose text exists already."""
    digest = hashlib.sha256(pack_text(head))
    for line in lines:
        digest.update(pack_text(line))
    machines = dict.fromkeys(name for item in run.environments if (name := device_name(item)))
    columns = {
        "id": column(run.id),
        "suite": column(run.suite),
        "started": sortable(run.started),
        "machine": column(", ".join(machines)) if machines else None,
        "num_records": len(lines),
        "outcomes": json.dumps(Counter(item.status.value for item in run.records)),
        "digest": digest.hexdigest(),
        "head": pack(head),
    }
    environments = [json.dumps(record.to_dict(item), sort_keys=True) for item in run.environments]
    points = [point for place, item in enumerate(run.records) for point in _points(run, item, place, environments)]
    return Entry(columns, [pack(line) for line in lines], points)


def pack_text(text: str) -> bytes:
    """Encode a text, including lone surrogates, which JSON can hold."""
    return text.encode("utf-8", "surrogatepass")


def pack(text: str) -> bytes:
    """Compress a text; `unpack` restores it exactly."""
    return zlib.compress(pack_text(text), LEVEL)


def unpack(body: bytes) -> str:
    """Return the text that `pack` compressed.

    Raises:
        ValueError: the bytes do not come from `pack`.
    """
    try:
        return zlib.decompress(body).decode("utf-8", "surrogatepass")
    except zlib.error as error:
        raise ValueError(str(error)) from None


def column(text: str) -> str:
    """Return a text in characters that every database accepts; the packed line has the exact one."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def sortable(started: str) -> str:
    """Return a time as UTC to the second, so that texts sort by time; a text that is not a time stays unchanged."""
    try:
        moment = datetime.fromisoformat(started)
        moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        return column(started)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _points(run: Run, item: Record, place: int, environments: Sequence[str]) -> list[Point]:
    environment = environment_of(run, item)
    machine = device_name(environment)
    spelled = environments[item.environment] if environment is not None and item.environment is not None else None
    shared = {
        "status": item.status.value,
        "reason": _known(item.reason),
        "version": _known(item.version),
        "source_hash": _known(item.source_hash),
    }
    times: list[Time | None] = [None]
    if item.status is Status.PASSED:
        times = [time for time in (item.time, *item.timers.values()) if time is not None and time.median_ms]
    # By series: the headline time is also that of one timer, and a file may repeat one.
    found = {_identity(run, item, machine, time): time for time in reversed(times)}
    return [Point(series, place, spelled, shared | _figures(time)) for series, time in reversed(found.items())]


def _identity(run: Run, item: Record, machine: str | None, time: Time | None) -> Identity:
    by = (time.timer, time.l2, time.regime) if time else (None, None, None)
    clocks = run.settings.lock_clocks
    names = (item.workload, item.case_id, item.backend, item.config, machine, *by, run.settings.input, clocks)
    return tuple(_known(name) for name in names)


def _figures(time: Time | None) -> dict[str, Any]:
    if time is None:
        return dict.fromkeys(("median_ms", "ci_low_ms", "ci_high_ms", "num_samples", "sm_mhz"))
    clocks = [clock for clock in time.sm_mhz if clock is not None]
    count = time.num_samples
    return {
        "median_ms": time.median_ms,
        "ci_low_ms": time.ci_low_ms,
        "ci_high_ms": time.ci_high_ms,
        "num_samples": count if count is not None and 0 <= count <= LARGEST else None,
        "sm_mhz": statistics.median(clocks) if clocks else None,
    }


def _known(text: str | None) -> str | None:
    return None if text is None else column(text)
