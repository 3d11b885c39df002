"""The output of `nsys export --type sqlite`: every kernel, copy, API call and range, with full names.

A kernel belongs to the range of the API call that launched it (same process and correlation id), so a launch counts
for the range in which it was made, however much later the GPU runs it.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any

from attnbench.errors import RunFileError, refusal
from attnbench.profile.capture import Capture
from attnbench.profile.categories import Categories
from attnbench.profile.timeline import Event, Instance, Timeline, enclosing, span
from attnbench.text import shown

MAGIC = b"SQLite format 3\0"
ACCEPTED = "a file that `nsys export --type sqlite` wrote"
KERNEL, MEMCPY, MEMSET = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
RUNTIME, GRAPH = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RANGE_TYPES = (59, 60, 70, 71)
"""NVTX events with a start and an end: push/pop and start/end, of the C and of the managed interface."""

COPY_KINDS = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer"}
KEY = int | None
"""Type of a reference to another row; may be absent."""
PROCESS = ~0xFFFFFF
"""Mask: the lowest 24 bits of a global thread id hold the thread, the others the process."""

WHOLE_GRAPHS = (
    "CUDA graphs are in it as wholes, without their kernels: nsys profile --cuda-graph-trace=node takes them apart"
)


def parse(path: Path, *, name: str, rules: Categories) -> Capture:
    """Read an export.

    Args:
        path: path of the file, opened read-only.
        name: name of the capture.
        rules: categories.

    Raises:
        RunFileError: it is truncated, locked, not an export, or without GPU activity.
    """
    try:
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)
        try:
            return _read(database, path.name, name, rules)
        finally:
            database.close()
    except (sqlite3.Error, ValueError) as error:
        raise RunFileError(refusal("nsys", "capture", path.name, f"cannot be read ({error})", ACCEPTED)) from None


def _read(database: sqlite3.Connection, source: str, name: str, rules: Categories) -> Capture:
    there = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    if "StringIds" not in there:
        raise RunFileError(refusal("nsys", "capture", source, "has no table StringIds", ACCEPTED))
    graphs = GRAPH in there and database.execute(f"SELECT count(*) FROM {GRAPH}").fetchone()[0]
    line = _timeline(database, there)
    if not line.events:
        wrong = "holds whole CUDA graphs only" if graphs else "holds no kernel and no copy of a GPU"
        raise RunFileError(
            refusal(
                "nsys", "capture", source, wrong, "a capture whose window saw launches", WHOLE_GRAPHS if graphs else ""
            )
        )
    window, busy = span(line.events)
    return Capture(
        tool="nsys",
        name=name,
        source=source,
        device=_device(database, there),
        kernels=line.kernels(rules),
        ranges=line.ranges(),
        copies=line.copies(),
        api=line.api(),
        window_ms=window,
        busy_ms=busy,
        notes=(WHOLE_GRAPHS,) if graphs else (),
    )


def _timeline(database: sqlite3.Connection, there: set[str]) -> Timeline:
    # Each text once: with a join, each of a million kernels would hold a copy of its long name.
    texts = dict(_rows(database, "SELECT id, value FROM StringIds", int, str))
    instances = _instances(database, texts) if "NVTX_EVENTS" in there else []
    calls: dict[str, list[float]] = defaultdict(list)
    points = []
    if RUNTIME in there:
        plain = {key: text.partition("_v")[0] for key, text in texts.items()}  # cudaLaunchKernel_v7000
        for start, end, thread, correlation, key in _rows(
            database, f"SELECT start, end, globalTid, correlationId, nameId FROM {RUNTIME}", int, int, int, KEY, KEY
        ):
            calls[plain.get(key, "?")].append(float(end - start))
            points.append((thread, start, (thread & PROCESS, correlation)))
    open_then = enclosing(instances, points)
    events = [*_kernels(database, texts, open_then)] if KERNEL in there else []
    for table in (MEMCPY, MEMSET):
        if table in there:
            events += _copies(database, table, open_then)
    return Timeline(events, instances, calls)


def _instances(database: sqlite3.Connection, texts: Mapping[int, str]) -> list[Instance]:
    key = "textId" if "textId" in _columns(database, "NVTX_EVENTS") else "NULL"
    return [
        Instance(str(text or texts.get(number, "?")), float(start), float(end), thread)
        for start, end, thread, text, number in _rows(
            database,
            f"SELECT start, end, globalTid, text, {key} FROM NVTX_EVENTS WHERE end IS NOT NULL "
            f"AND eventType IN {RANGE_TYPES} ORDER BY start",
            int,
            int,
            KEY,
            str | None,
            KEY,
        )
    ]


def _kernels(
    database: sqlite3.Connection, texts: Mapping[int, str], open_then: Mapping[object, tuple[int, ...]]
) -> Iterable[Event]:
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    for start, end, process, correlation, whole, short, *sizes in _rows(
        database,
        "SELECT start, end, globalPid, correlationId, demangledName, shortName, gridX, gridY, gridZ, "
        f"blockX, blockY, blockZ FROM {KERNEL} ORDER BY start",
        int,
        int,
        KEY,
        KEY,
        KEY,
        KEY,
        *[int] * 6,
    ):
        grid, block = tuple(sizes[:3]), tuple(sizes[3:])
        yield Event(
            "kernel",
            texts.get(whole) or texts.get(short, "?"),
            float(start),
            float(end),
            open_then.get((process, correlation), ()),
            grid=shapes.setdefault(grid, grid),
            block=shapes.setdefault(block, block),
        )


def _copies(database: sqlite3.Connection, table: str, open_then: Mapping[object, tuple[int, ...]]) -> Iterable[Event]:
    kind = "copyKind" if table == MEMCPY else "NULL"
    for start, end, process, correlation, size, copied in _rows(
        database,
        f"SELECT start, end, globalPid, correlationId, bytes, {kind} FROM {table} ORDER BY start",
        int,
        int,
        KEY,
        KEY,
        int,
        KEY,
    ):
        words = COPY_KINDS.get(copied, f"kind {copied}") if table == MEMCPY else ""
        yield Event(
            "copy",
            f"[CUDA memcpy {words}]" if words else "[CUDA memset]",
            float(start),
            float(end),
            open_then.get((process, correlation), ()),
            bytes=size,
        )


def _device(database: sqlite3.Connection, there: set[str]) -> str | None:
    if "TARGET_INFO_GPU" not in there or "name" not in _columns(database, "TARGET_INFO_GPU"):
        return None
    return next((name for [name] in _rows(database, "SELECT name FROM TARGET_INFO_GPU LIMIT 1", str | None)), None)


def _rows(database: sqlite3.Connection, statement: str, *kinds: type | UnionType) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query, each value checked against its column's type: SQLite columns hold values of any type.

    Raises:
        ValueError: a value has another type; the message shows it.
    """
    known: set[tuple[type, ...]] = set()  # a million rows have two or three combinations of types
    for row in database.execute(statement):
        if (types := tuple(map(type, row))) not in known:
            for value, kind in zip(row, kinds, strict=True):
                if not isinstance(value, kind):
                    raise ValueError(f"{shown(value)} is not a {getattr(kind, '__name__', kind)}")
            known.add(types)
        yield row


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
