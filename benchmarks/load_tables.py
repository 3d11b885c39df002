"""Rows of the tables of loads: results of `attnbench load`, and of `load_generator.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from attnbench.presentation import figures
from attnbench.store.load_file import LoadRun, Point, read

HEAD = (
    "model",
    "load",
    "offered/s",
    "answered/s",
    "p50 ms",
    "p99 ms",
    "in time",
    "queue p50 ms",
    "host p50 ms",
    "GPU p50 ms",
    "batch",
    "hit %",
)


def load_rows(paths: Sequence[Path]) -> list[list[str]]:
    """A row a load, the columns of `HEAD`."""
    return [_row(run, point) for path in paths if path.is_file() for run in (read(path),) for point in run.points]


def machine_of(paths: Sequence[Path]) -> str:
    """The card and torch of the first result that is there."""
    run = next(read(path) for path in paths if path.is_file())
    return f"{run.environment.gpu or run.environment.cpu}, torch {run.environment.torch}"


def _row(run: LoadRun, point: Point) -> list[str]:
    latency, counts = point.latency, point.cache
    tight = min(point.goodput, key=lambda one: one.slo_ms)
    late = point.scenario != "offline"
    return [
        _served(run),
        point.scenario,
        figures.plain(point.offered_rate, 4),
        figures.plain(point.achieved_rate, 4),
        figures.plain(latency.p50) if latency and late else "",
        figures.plain(latency.p99) if latency and late else "",
        f"{100 * tight.share:.1f} % in {tight.slo_ms:g} ms" if late else "",
        figures.plain(point.queue.p50) if point.queue and late else "",
        figures.plain(point.host.p50) if point.host else "",
        figures.plain(point.device.p50) if point.device else "",
        figures.plain(sum(point.batch_size) / len(point.batch_size)) if point.batch_size else "",
        f"{100 * (counts['hit'] + counts['host_hit']) / counts['tokens']:.0f}" if counts.get("tokens") else "",
    ]


def _served(run: LoadRun) -> str:
    """The model, how much of what all users need its cache holds, and how its steps run."""
    said = run.settings
    parts = [run.model, f"pool {100 * said['pool_share']:.0f} %" if said.get("cache") else "no cache"]
    if said.get("cache") and said.get("host_pages"):
        parts.append(f"{said['host_pages']} host pages, {said['on_host_hit']}")
    return ", ".join([*parts, *["graphs"] * bool(said.get("graph"))])


GENERATOR_HEAD = ("generator", "asked/s", "offered/s", "requests", "late p50 ms", "late p99 ms", "late at most, ms")


def generator_rows(path: Path) -> list[list[str]]:
    """A row a rate of each generator, the columns of `GENERATOR_HEAD`."""
    names = ("generator", "asked", "offered", "requests", "late_p50_ms", "late_p99_ms", "late_max_ms")
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [[one[name] if isinstance(one[name], str) else f"{one[name]:.10g}" for name in names] for one in found]
