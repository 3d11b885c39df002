"""The export of torch.profiler: a Chrome trace in JSON, with CUPTI's times of kernels and copies.

A trace without GPU activity has nested operators of torch on the CPU; `_operators` chooses which of them count.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.errors import RunFileError, refusal, unreadable
from attnbench.profile.capture import CPU, Capture
from attnbench.profile.categories import Categories
from attnbench.profile.timeline import Event, Instance, Timeline, enclosing, span

GZIP = b"\x1f\x8b"
NS = 1e3
"""Nanoseconds per unit of the trace, a microsecond."""
MOST = 2**63 - 1
"""Largest count."""
MOST_US = 1e18
"""Largest time stamp: thirty thousand years."""

COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
API = ("cuda_runtime", "cuda_driver", "runtime", "driver")
OURS = "attnbench"
"""Key of the metadata that attnbench's target writes into its trace."""

ACCEPTED = "a trace that torch.profiler exported (export_chrome_trace)"


def parse(path: Path, *, name: str, rules: Categories) -> Capture:
    """Read a trace, compressed with gzip or not.

    Raises:
        RunFileError: it is truncated, not a trace, or without kernels, copies and operators.
    """
    source = path.name
    data = _load(path)
    traced = data.get("traceEvents")
    if not isinstance(traced, list):
        raise RunFileError(refusal("torch", "capture", source, "has no traceEvents", ACCEPTED))
    line = _timeline([one for one in traced if isinstance(one, dict) and one.get("ph") == "X"], source)
    if not line.events:
        raise RunFileError(refusal("torch", "capture", source, "holds no kernel, no copy and no operator", ACCEPTED))
    window, busy = span(line.events)
    notes = _notes(traced)
    ours, cards = data.get(OURS), data.get("deviceProperties")
    ours = ours if isinstance(ours, dict) else {}
    card = cards[0].get("name") if isinstance(cards, list) and cards and isinstance(cards[0], dict) else None
    return Capture(
        tool="torch",
        tool_version=_text(ours.get("torch")),
        name=name,
        source=source,
        command=_text(ours.get("command")),
        device=CPU if notes else _text(card),
        kernels=line.kernels(rules),
        ranges=line.ranges(),
        copies=line.copies(),
        api=line.api(),
        window_ms=window,
        busy_ms=busy,
        notes=notes,
    )


def _load(path: Path) -> Mapping[str, Any]:
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if raw.startswith(GZIP) else raw)
    except UnicodeDecodeError as error:
        raise RunFileError(refusal("torch", "capture", path.name, unreadable(error), ACCEPTED)) from None
    except (OSError, EOFError, ValueError, RecursionError, zlib.error):
        raise RunFileError(refusal("torch", "capture", path.name, "is cut short or is no JSON", ACCEPTED)) from None
    return {"traceEvents": data} if isinstance(data, list) else data if isinstance(data, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _timeline(traced: Sequence[Mapping[str, Any]], source: str) -> Timeline:
    calls: dict[str, list[float]] = defaultdict(list)
    instances: list[Instance] = []
    points = []
    device = []
    try:
        for one in traced:
            kind = str(one.get("cat", "")).casefold()
            start = NS * _number(one["ts"])
            end = start + NS * _number(one.get("dur", 0.0))
            thread = (_key(one.get("pid")), _key(one.get("tid")))
            if kind == "kernel" or kind in COPIES:
                device.append((one, "kernel" if kind == "kernel" else "copy", str(one["name"]), start, end))
            elif kind in API:
                calls[str(one["name"])].append(end - start)
                points.append((thread, start, _correlation(one)))
            elif kind == "user_annotation":
                instances.append(Instance(str(one["name"]), start, end, thread))
    except (KeyError, TypeError, ValueError) as error:
        raise RunFileError(
            refusal("torch", "capture", source, f"has an event that cannot be read ({error})", ACCEPTED)
        ) from None
    if not device:
        device = _operators(traced)
        points += [((_key(one.get("pid")), _key(one.get("tid"))), start, id(one)) for one, _, _, start, _ in device]
    open_then = enclosing(instances, points)
    events = [_event(*one, open_then) for one in device]
    return Timeline(sorted(events, key=lambda event: event.start), instances, calls)


def _operators(traced: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str, str, float, float]]:
    """Return operators on the CPU that do not overlap.

    An operator replaces those inside it if they take less than half of its time; otherwise they replace it.
    """
    found = [
        (one, "kernel", str(one["name"]), start, start + NS * _number(one.get("dur", 0.0)))
        for one in traced
        if str(one.get("cat", "")).casefold() == "cpu_op"
        for start in [NS * _number(one["ts"])]
    ]
    threads: dict[tuple[object, object], list[tuple[Mapping[str, Any], str, str, float, float]]] = defaultdict(list)
    for event in found:
        threads[_key(event[0].get("pid")), _key(event[0].get("tid"))].append(event)
    chosen = []
    for events in threads.values():
        events.sort(key=lambda event: (event[3], -event[4]))
        inside: list[list[int]] = [[] for _ in events]
        outermost: list[int] = []
        stack: list[int] = []
        for index, event in enumerate(events):
            while stack and events[stack[-1]][4] <= event[3]:
                stack.pop()
            (inside[stack[-1]] if stack else outermost).append(index)
            stack.append(index)
        while outermost:
            index = outermost.pop()
            event = events[index]
            within = sum(events[child][4] - events[child][3] for child in inside[index])
            if 2 * within > event[4] - event[3]:
                outermost += inside[index]
            else:
                chosen.append(event)
    return chosen


def _notes(traced: Sequence[object]) -> tuple[str, ...]:
    on_gpu = any(isinstance(one, dict) and str(one.get("cat", "")).casefold() in ("kernel", *COPIES) for one in traced)
    return () if on_gpu else ("rows are operators of torch on the CPU, each with the shorter ones it is made of",)


def _correlation(one: Mapping[str, Any]) -> Any:
    arguments = one.get("args")
    return _key(arguments.get("correlation", arguments.get("External id"))) if isinstance(arguments, dict) else None


def _number(value: Any) -> float:
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        number = math.inf
    if not abs(number) < MOST_US:
        raise ValueError(f"{number:g} is no time")
    return number


def _key(value: object) -> str | int | float | None:
    """Return the id of a thread or launch; None if it is not a plain value."""
    return value if isinstance(value, str | int | float) else None


def _event(
    one: Mapping[str, Any], kind: str, name: str, start: float, end: float, open_then: Mapping[object, tuple[int, ...]]
) -> Event:
    given = one.get("args")
    arguments: Mapping[str, Any] = given if isinstance(given, dict) else {}
    ranges = open_then.get(id(one), ()) or open_then.get(_correlation(one), ())
    return Event(
        kind,
        name,
        start,
        end,
        ranges,
        bytes=_whole(arguments.get("bytes")),
        grid=_shape(arguments.get("grid")),
        block=_shape(arguments.get("block")),
    )


def _shape(value: object) -> tuple[int, ...] | None:
    sizes = [_whole(one) for one in value] if isinstance(value, list) and len(value) == 3 else []
    found = tuple(size for size in sizes if size is not None)
    return found if len(found) == 3 else None


def _whole(value: object) -> int | None:
    """Return a count; None for anything else or an impossible count."""
    return value if type(value) is int and 0 <= value <= MOST else None
