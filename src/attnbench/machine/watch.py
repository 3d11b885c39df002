"""Show the live state of the GPU in a terminal: clock, power, temperature, memory, load, clock limits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnbench.machine.nvml import Gpu, GpuState

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def watch(console: Console, gpu: Gpu, seconds: float) -> None:
    """Show the GPU until interrupted; on a pipe, one line per reading.

    Args:
        console: console to print to.
        gpu: the GPU.
        seconds: time between two readings.
    """
    if console.is_terminal:
        _watch_live(console, gpu, seconds)
    else:
        _watch_lines(console, gpu, seconds)


def words_of(throttle: tuple[str, ...] | None) -> str | None:
    """Return in one line what limits the clock; None if the driver does not report it."""
    return None if throttle is None else ", ".join(throttle) or "nothing"


def quantity(value: float | None, unit: str) -> str | None:
    """Return a number with its unit, at most one decimal; None for None."""
    if value is None:
        return None
    return f"{round(value, 1):g} {unit}" if value < 1e5 else f"{value:.0f} {unit}"


def _watch_live(console: Console, gpu: Gpu, seconds: float) -> None:
    from rich.live import Live

    seen: dict[str, tuple[float, float]] = {}
    title = f"{gpu.name() or 'GPU'}, every {seconds:g} s, Ctrl-C ends"
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_watch_table(title, gpu.state(), seen), refresh=True)
            time.sleep(seconds)


def _watch_lines(console: Console, gpu: Gpu, seconds: float) -> None:
    began = time.monotonic()
    while True:
        state = gpu.state()
        values = "  ".join(f"{name} {text or 'not reported'}" for name, text, _, _ in _gauges(state))
        held = words_of(state.throttle) or "not reported"
        console.print(f"{time.monotonic() - began:8.1f} s  {values}  held back by {held}", soft_wrap=True)
        console.file.flush()
        time.sleep(seconds)


def _gauges(state: GpuState) -> list[tuple[str, str | None, float | None, float | None]]:
    """Return name, text, value and maximum of each gauge."""
    return [
        ("clock", quantity(state.sm_mhz, "MHz"), state.sm_mhz, state.sm_max_mhz),
        ("power", quantity(state.power_w, "W"), state.power_w, state.power_limit_w),
        ("heat", quantity(state.celsius, "°C"), state.celsius, None),
        ("memory", quantity(state.memory_used_mb, "MiB"), state.memory_used_mb, state.memory_total_mb),
        ("load", quantity(state.load_percent, "%"), state.load_percent, 100),
    ]


def _watch_table(title: str, state: GpuState, seen: dict[str, tuple[float, float]]) -> Table:
    """Return gauges with the range so far, which `seen` stores."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for _ in range(5):
        table.add_column(no_wrap=True)
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    for name, words, value, most in _gauges(state):
        if value is not None:
            low, high = seen.get(name, (value, value))
            seen[name] = min(low, value), max(high, value)
        bar = ProgressBar(total=most, completed=value, width=24) if value is not None and most else ""
        limit = f"of {most:g}" if most else ""
        table.add_row(name, words or "not reported", bar, limit, _range(seen, name))
    table.add_row("held by", words_of(state.throttle) or "not reported")
    return table


def _range(seen: Mapping[str, tuple[float, float]], name: str) -> str:
    return f"seen {seen[name][0]:.0f} to {seen[name][1]:.0f}" if name in seen else ""
