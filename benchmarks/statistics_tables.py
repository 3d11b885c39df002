"""The tables of docs/measuring.md and docs/history.md that say what simulated statistics are worth."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path


def tick_rows(path: Path) -> Iterator[tuple[str, ...]]:
    """Coverage of a median's interval under a tick, the worst of three ways to round."""
    rows = json.loads(path.read_text("utf-8"))["ticks"]
    for micros, tick, noise in dict.fromkeys((row["micros"], row["tick"], row["noise"]) for row in rows):
        own = [row for row in rows if (row["micros"], row["noise"]) == (micros, noise)]
        yield (
            f"{micros:g} µs, tick {1e3 * tick:g} ns",
            noise,
            *(f"{100 * min(row['with']):.0f} %" for row in own),
            " / ".join(f"{100 * min(row['without']):.0f}" for row in own) + " %",
        )


def stop_rows(path: Path) -> Iterator[tuple[str, ...]]:
    """Coverage of a ratio's interval at the stop, and the rounds that it took."""
    rows = json.loads(path.read_text("utf-8"))["stop"]
    for noise in dict.fromkeys(row["noise"] for row in rows):
        yield (
            noise,
            *(
                f"{100 * row['held'] / row['streams']:.0f} %, {row['median_rounds']:.0f}"
                for row in rows
                if row["noise"] == noise
            ),
        )


def change_rows(path: Path) -> Iterator[tuple[str, ...]]:
    """Alarms of quiet histories and delays of steps."""
    data = json.loads(path.read_text("utf-8"))
    for row in data["kinds"]:
        yield (
            row["noise"],
            f"{len(row['alarms'])} of {row['series']}",
            *(_delays(found, data["after"]) for found in row["delays"].values()),
        )


def _delays(found: list[int | None], after: int) -> str:
    known = sorted(after + 1 if one is None else one for one in found)
    late = known[-(-9 * len(known) // 10) - 1]
    middle = statistics.median(known)
    return " / ".join(f"over {after}" if one > after else f"{one:.0f}" for one in (middle, late)) + " runs"
