"""Results of the Python functions: figures with their intervals, short to print, complete as data."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.errors import UsageError, refusal, unknown
from attnbench.record import PowerSeries, Run, Speedup, Status, Time
from attnbench.text import spelled

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True, repr=False)
class Timing:
    """One function's time.  `time` has every sample and statistic."""

    name: str
    time: Time
    kernels: tuple[str, ...] = ()
    "device kernels of one call, in order of first launch"
    kernel_launches: tuple[int, ...] = ()
    "launches of each kernel"
    kernel_ms: tuple[float, ...] = ()
    "time of all launches of each kernel"
    power: PowerSeries | None = None
    notes: tuple[str, ...] = ()
    timers: Mapping[str, Time] | None = None
    "with timer='all': the same function by every timer"

    @property
    def median_ms(self) -> float:
        """Median of the samples, ms."""
        return statistics.median(self.time.samples_ms)

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """95 % interval of the median, ms; None below six samples."""
        low, high = self.time.ci_low_ms, self.time.ci_high_ms
        return None if low is None or high is None else (low, high)

    @property
    def sm_mhz(self) -> float | None:
        """Median SM clock while sampling; None on a CPU."""
        seen = [clock for clock in self.time.sm_mhz if clock]
        return statistics.median(seen) if seen else None

    def __str__(self) -> str:
        return f"{_shown(self.name)}: {_figures(self)}  ({_circumstances(self)})"

    def __repr__(self) -> str:
        return f"<Timing {self}>"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook."""
        return _html_table(_circumstances(self), ["function", "median"], [[_shown(self.name), _figures(self)]])


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Mapping[str, Timing]):
    """Several functions measured alternately.  A mapping from name to `Timing`."""

    timings: Mapping[str, Timing]
    baseline: str
    speedups: Mapping[str, Speedup]
    "of each other function against the baseline; above 1 is faster"

    def __getitem__(self, name: str) -> Timing:
        return self.timings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.timings)

    def __len__(self) -> int:
        return len(self.timings)

    def speedup(self, name: str) -> Speedup:
        """Baseline time over this function's time, within rounds.

        Raises:
            UsageError: there is no such function, or it is the baseline.
        """
        if name not in self.speedups:
            raise unknown("compare", "name", name, self.speedups)
        return self.speedups[name]

    def assert_speedup(self, name: str, *, at_least: float) -> None:
        """Raise if the whole interval of a speed-up is below a bound, to fail a test.

        Raises:
            AssertionError: the whole interval is below the bound; a ratio that is too uncertain passes.
            UsageError: there is no such function, or the bound is not a positive number.
        """
        __tracebackhide__ = True  # pytest shows the test's own line, not this one
        if not at_least > 0:
            raise UsageError(refusal("assert_speedup", "at_least", at_least, "cannot be used", "a number above 0"))
        found = self.speedup(name)
        highest = found.ratio if found.ci_high is None else found.ci_high
        if highest < at_least:
            against = f"against {_shown(self.baseline)}; at least {at_least:g}x wanted"
            raise AssertionError(f"{_shown(name)} is {_speedup(found)} {against}")

    def __str__(self) -> str:
        width = max(len(_shown(name)) for name in self.timings)
        how = _circumstances(self.timings[self.baseline])
        lines = [f"measured in turn, speed-up against {_shown(self.baseline)} ({how})"]
        for name, timing in self.timings.items():
            line = f"  {_shown(name):{width}}  {_figures(timing):>17}"
            if name in self.speedups:
                line += f"  {_speedup(self.speedups[name])}"
            lines.append(line)
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Comparison {self}>"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook."""
        rows = [
            [_shown(name), _figures(timing), _speedup(self.speedups[name]) if name in self.speedups else "baseline"]
            for name, timing in self.timings.items()
        ]
        return _html_table(
            f"measured in turn ({_circumstances(self.timings[self.baseline])})",
            ["function", "median", f"speed-up against {_shown(self.baseline)}"],
            rows,
        )


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """A run, with methods to print, save and convert it."""

    run: Run

    def to_pandas(self) -> Any:
        """Return one row per record, with the columns of the CSV export.

        Raises:
            Unavailable: pandas is not installed.
        """
        from attnbench.store.frame import to_pandas

        return to_pandas(self.run)

    def save(self, path: str | Path) -> Path:
        """Write the run file."""
        from attnbench.store.runfile import write

        return write(self.run, Path(path))

    def __str__(self) -> str:
        return self._printed(_tables)

    def _printed(self, render: Callable[[Run, Console], None]) -> str:
        import io

        from rich.console import Console

        from attnbench.report.terminal import trimmed

        text = io.StringIO()
        render(self.run, Console(file=trimmed(text), width=120))
        return text.getvalue().rstrip()

    def __repr__(self) -> str:
        counts = Counter(record.status.value for record in self.run.records)
        rows = ", ".join(f"{counts[status.value]} {status.value}" for status in Status if counts[status.value])
        cases = len({record.case_id for record in self.run.records})
        return (
            f"<Result of {self.run.suite}: {cases} case{'s' * (cases != 1)}, {rows or 'no record'}; "
            "print() shows the tables, .run is the data, .to_pandas() a frame>"
        )

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the table of the terminal, or the matrix if there are several cases."""
        from attnbench.report.table import render_matrix

        several = len({record.case_id for record in self.run.records}) > 1
        text = self._printed(render_matrix if several else _tables)
        return f"<pre>{escape(text)}</pre>" + "<p>print() shows the table of each case</p>" * several


def _tables(run: Run, console: Console) -> None:
    from attnbench.report.table import render_run

    render_run(run, console, wider="to_pandas() has them")


def _html_table(caption: str, heads: list[str], rows: list[list[str]]) -> str:
    lines = [
        "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
        for tag, cells in [("th", heads), *(("td", row) for row in rows)]
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(caption)}</caption>{body}</table>"


def _shown(name: str) -> str:
    """Return a function's name without control characters, in one line; mappings keep it unchanged."""
    return " ".join(spelled(name).split())


def _figures(timing: Timing) -> str:
    """Median and the longer arm of its interval, with the digits that it supports; of a wider one both ends."""
    from attnbench.presentation.figures import interval, margin, measured, time_half, unit_for, wild_time

    unit, half = unit_for([timing.median_ms]), time_half(timing.time)
    value, arm = timing.median_ms * unit.per_ms, unit.of(half)
    beside = f"({interval(timing.time, unit)})" if wild_time(timing.time) else margin(value, arm)
    return f"{measured(value, arm)} {beside} {unit.name}".replace("  ", " ")


def _circumstances(timing: Timing) -> str:
    clock = f", {timing.sm_mhz:.0f} MHz" if timing.sm_mhz else ""
    return f"{timing.time.timer}, {timing.time.l2} cache, {timing.time.regime}{clock}, n={timing.time.num_samples}"


def _speedup(found: Speedup) -> str:
    from attnbench.presentation.figures import ratio

    return " ".join(filter(None, (*ratio(found), found.verdict)))
