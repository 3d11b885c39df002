"""The tables of captures: kernels, categories, copies, ranges, CUDA API, counters, advice, seed 003's."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attnbench.profile import categories as kinds
from attnbench.profile import reading, seed_003
from attnbench.profile.advice import advice
from attnbench.profile.capture import CPU, Capture, KernelRow, split_range
from attnbench.profile.counters import STALL, known, worst_stall
from attnbench.profile.roofline import Point
from attnbench.profile.sums import category_ms, percent
from attnbench.profile.table import MOST, Cell, Table

MOST_OTHER = 1.0
"""Per cent of the kernel time that may be in no category without a note."""


def kernels(capture: Capture) -> Table:
    """Return the kernels that ran on the GPU, longest first."""
    total = capture.kernel_ms
    places = _places(capture)
    apart = len(set(places)) > 1
    rows = [
        ((place,) if apart else ())
        + (
            row.category,
            row.short,
            row.calls,
            row.total_ms,
            percent(row.total_ms, total),
            row.mean_ms,
            row.median_ms,
            row.min_ms,
            row.max_ms,
        )
        for place, row in zip(places, capture.kernels[:MOST], strict=False)
    ]
    more = len(capture.kernels) - len(rows)
    notes = [*capture.notes, *([f"{more} more kernels, all of them shorter"] if more > 0 else [])]
    heads = ("category", "kernel", "calls", "total ms", "%", "mean ms", "median", "min", "max")
    ranks = (0, 0, 0, 0, 0, 2, 1, 4, 3)
    whose = "" if capture.name == capture.tool else f" of {capture.name}"
    return Table(
        title=f"kernels{whose} ({capture.tool})",
        heads=(("in",) if apart else ()) + heads,
        rows=tuple(rows),
        notes=tuple(notes),
        ranks=((0,) if apart else ()) + ranks,
    )


def _places(capture: Capture) -> list[str]:
    """Return where each kernel was launched: the backend if that distinguishes kernels, else the range."""
    several = len({row.case for row in capture.kernels if row.case}) > 1
    return [
        row.backend if row.backend and not several and split_range(row.range)[0] else row.range or ""
        for row in capture.kernels
    ]


def categories(captures: Sequence[Capture]) -> Table:
    """Return the time by category, columns of ms and per cent for each capture; of the window if known."""
    names = _category_names(captures)
    heads = ["category"]
    columns: list[list[Cell]] = []
    for capture in captures:
        heads += [f"{capture.name} ms", "%"]
        times = [category_ms(capture, name) for name in names]
        whole = capture.window_ms if capture.window_ms is not None else sum(time for time in times if time is not None)
        columns += [[*times], [percent(time, whole) for time in times]]
    rows = [(name, *(column[index] for column in columns)) for index, name in enumerate(names)]
    kept = [row for row in rows if any(isinstance(cell, float) for cell in row)]
    notes = (*_of_what(captures), *reading.of_times(captures), *_coverage(captures))
    return Table(title="time by category", heads=tuple(heads), rows=tuple(kept), notes=notes)


def _coverage(captures: Sequence[Capture]) -> Iterator[str]:
    """Yield how much of the kernel time no rule covers, if more than 1 %."""
    for capture in captures:
        other = percent(category_ms(capture, kinds.OTHER), capture.kernel_ms)
        if other is not None and other > MOST_OTHER:
            yield f"{capture.name}: {other:.1f} % of the time of kernels is in no category; --categories has further rules"


def by_category(capture: Capture) -> dict[str, float]:
    """Return the ms of each category of a capture, in the order of tables, including idle if known."""
    times = {name: category_ms(capture, name) for name in _category_names([capture])}
    return {name: ms for name, ms in times.items() if ms}


def _of_what(captures: Sequence[Capture]) -> tuple[str, ...]:
    """Return notes that say of which time the percentages are."""
    without = [capture.name for capture in captures if capture.window_ms is None]
    mixed = f"{', '.join(without)}: " if 0 < len(without) < len(captures) else ""
    notes = []
    if len(without) < len(captures):
        notes.append(
            "per cent of the window, from the first start to the last end; idle is the part of it in "
            "which nothing ran; what overlaps counts twice"
        )
    if without:
        notes.append(f"{mixed}per cent of all time of kernels and copies; the window is not known, nor what was idle")
    return tuple(notes)


def _category_names(captures: Iterable[Capture]) -> list[str]:
    own = dict.fromkeys(
        row.category for capture in captures for row in capture.kernels if row.category not in kinds.ORDER
    )
    *known_first, other, memory, idle = kinds.ORDER
    return [*known_first, *own, other, memory, idle]


def copies(capture: Capture) -> Table:
    """Return copies and fills, by time and size."""
    rows = tuple(
        (row.operation, row.calls, row.total_ms, row.mean_ms, row.min_ms, row.max_ms, row.total_mb)
        for row in capture.copies
    )
    return Table(
        title=f"copies of {capture.name}",
        rows=rows,
        heads=("operation", "calls", "total ms", "mean ms", "min", "max", "MB"),
    )


def ranges(capture: Capture) -> Table:
    """Return ranges, with the GPU time of the work launched in them beside their host time."""
    where = "operators" if capture.device == CPU else "GPU"
    rows = tuple((row.name, row.calls, row.gpu_ms, row.busy_ms, row.host_ms) for row in capture.ranges)
    return Table(
        title=f"ranges of {capture.name}",
        rows=rows,
        heads=("range", "calls", f"{where} ms", f"{where} busy ms", "CPU ms"),
    )


def api(capture: Capture) -> Table:
    """Return calls of the CUDA API: CPU time, never part of GPU time."""
    rows = tuple(
        (row.name, row.calls, row.total_ms, row.mean_ms, row.median_ms, row.max_ms) for row in capture.api[:MOST]
    )
    return Table(
        title=f"CUDA API of {capture.name}: time of the CPU, not of the GPU",
        rows=rows,
        heads=("function", "calls", "CPU ms", "mean ms", "median", "max"),
    )


# ── counters of ncu ────────────────────────────────────────────────────────────────────────────────

SHOWN = {
    "duration_ms": ("ms", 0),
    "cycles": ("cycles", 5),
    "sm_mhz": ("SM MHz", 7),
    "registers": ("regs", 3),
    "theoretical_occupancy_percent": ("occ. max %", 6),
    "achieved_occupancy_percent": ("occ. %", 0),
    "l2_hit_percent": ("L2 hit %", 0),
    "l2_percent": ("L2 %", 6),
    "dram_percent": ("DRAM %", 0),
    "sm_percent": ("SM %", 0),
    "tensor_percent": ("tensor %", 0),
}
"""Counters of the table, with their headers and ranks."""


def counters(captures: Sequence[Capture]) -> Table:
    """Return one row per kernel: duration, cycles, registers, occupancy, caches, throughputs, stall reason."""
    rows: list[tuple[Cell, ...]] = []
    for capture in captures:
        for row in capture.kernels[:MOST]:
            stall = worst_stall(row)
            rows.append(
                (
                    row.backend or capture.name,
                    row.short,
                    row.calls,
                    *(_counter(row, name) for name in SHOWN),
                    f"{stall[0]} {stall[1]:.2f}" if stall else None,
                )
            )
    return Table(
        title="counters (ncu)",
        rows=tuple(rows),
        ranks=(0, 0, 8, *(rank for _, rank in SHOWN.values()), 4),
        heads=("backend", "kernel", "calls", *(head for head, _ in SHOWN.values()), "warps wait for"),
        notes=(
            *_remarks(captures),
            "occ. is the share of an SM's warp slots in use, occ. max the share that "
            "registers and shared memory allow; tensor % is of the cycles in which the SM was active; warps "
            "wait for: the most frequent stall reason, and the warps stalled by it per issued instruction",
            *reading.of_counters(captures),
        ),
    )


def _remarks(captures: Sequence[Capture]) -> list[str]:
    """Return the captures' own notes on missing data, each with its capture's name if there are several."""
    return [f"{capture.name}: {note}" if len(captures) > 1 else note for capture in captures for note in capture.notes]


def metrics(capture: Capture, title: str, names: Sequence[str]) -> Table:
    """Return some counters of every kernel, those that the capture has."""
    present = {name for row in capture.kernels for name in row.counters}
    there = [one for one in known()[0] if one.name in names and one.name in present]
    rows = tuple((row.backend, row.short, *(_counter(row, one.name) for one in there)) for row in capture.kernels)
    return Table(
        title=f"{title} counters of {capture.source}",
        rows=rows,
        heads=("backend", "kernel", *(f"{one.title} {one.unit}".strip() for one in there)),
    )


def _counter(row: KernelRow, name: str) -> Cell:
    value = row.counters.get(name)
    return int(value) if value is not None and name in ("cycles", "registers") else value


def roofline(points: Sequence[Point]) -> Table:
    """Return each backend's place on the roofline."""
    rows = tuple(
        (
            one.backend,
            one.case,
            one.flops / 1e9,
            one.dram_mb,
            one.intensity,
            one.tflops,
            one.percent_of_compute,
            one.gbps,
            one.percent_of_memory,
        )
        for one in points
    )
    return Table(
        title="roofline",
        rows=rows,
        heads=("backend", "case", "GFLOP", "DRAM MB", "FLOP/byte", "TFLOP/s", "% of peak", "GB/s", "% of peak"),
        notes=(
            "useful FLOPs of the case over the time and the DRAM traffic that ncu measured, for one launch; peaks "
            "are the data sheet's",
        ),
    )


# ── which of them ──────────────────────────────────────────────────────────────────────────────────

NAMES = ("all", "kernels", "categories", "counters", "seed-003")


def chosen(name: str, captures: Sequence[Capture], points: Sequence[Point] = (), *, whole: bool = False) -> list[Table]:
    """Return the tables of a name, without empty ones.

    Args:
        name: one of `NAMES`; ``all`` is every table but seed 003's.
        captures: captures in the order of columns.
        points: points on the roofline.
        whole: show the whole text of ncu's rules.
    """
    counted = [capture for capture in captures if any(row.counters for row in capture.kernels)]
    timed = [capture for capture in captures if capture not in counted]
    found: list[Table] = []
    if name in ("seed-003", "categories"):  # shown alone, so with the notes that `all` prints under the kernels
        one = seed_003.table(captures) if name == "seed-003" else categories(captures)
        return [dataclasses.replace(one, notes=(*_remarks(captures), *one.notes))] if one.rows else []
    if name in ("all", "counters"):
        found += [counters(counted), roofline(points), advice(counted, whole=whole)]
    if name in ("all", "kernels"):
        found += [kernels(capture) for capture in (timed if name == "all" else captures)]
    if name == "all":
        found.append(categories(timed))
        found += [table(capture) for capture in timed for table in (copies, ranges, api)]
    return [table for table in found if table.rows]


# ── every row, for a spreadsheet ───────────────────────────────────────────────────────────────────

FIELDS: Mapping[str, Callable[[Capture, KernelRow], Cell]] = {
    "tool": lambda capture, row: capture.tool,
    "capture": lambda capture, row: capture.name,
    "backend": lambda capture, row: row.backend,
    "case": lambda capture, row: row.case,
    "range": lambda capture, row: row.range,
    "category": lambda capture, row: row.category,
    "kernel": lambda capture, row: row.short,
    "calls": lambda capture, row: row.calls,
    "total_ms": lambda capture, row: row.total_ms,
    "mean_ms": lambda capture, row: row.mean_ms,
    "median_ms": lambda capture, row: row.median_ms,
    "min_ms": lambda capture, row: row.min_ms,
    "max_ms": lambda capture, row: row.max_ms,
    "grid": lambda capture, row: "x".join(map(str, row.grid or ())),
    "block": lambda capture, row: "x".join(map(str, row.block or ())),
}


def to_csv(captures: Iterable[Capture]) -> str:
    """Return every kernel of every capture with all counters; the full name comes last."""
    captures = list(captures)
    there = {name for capture in captures for row in capture.kernels for name in row.counters}
    ordered = [one.name for one in known()[0] if one.name in there]
    ordered += sorted(name for name in there if name.startswith(STALL))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*FIELDS, *ordered, "name"])
    for capture in captures:
        for row in capture.kernels:
            writer.writerow(
                [
                    *(field(capture, row) for field in FIELDS.values()),
                    *(row.counters.get(name) for name in ordered),
                    row.name,
                ]
            )
    return out.getvalue()
