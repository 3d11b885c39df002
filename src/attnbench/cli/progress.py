"""Show the progress of a command on stderr: a bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING

from attnbench.cli.output import Output
from attnbench.text import for_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from attnbench.record import Run
    from attnbench.sweep.run import Event

PATIENCE_S = 1.0
"""Shorter work shows neither bar nor line."""
QUIET_S = 8.0
"""Longest time without a line if stderr is not a terminal."""
TICK_S = 0.25


class Clock:
    """Remaining time of a plan: the estimate of the remaining groups, scaled by the error of the finished ones."""

    def __init__(self, run: Run, seconds: Mapping[str, float], now: float, executors: int = 1) -> None:
        self.seconds, self.begun, self.group_begun, self.executors = seconds, now, now, executors
        have = {(record.group, record.backend) for record in run.records}
        self.left = [group.group for group in run.plan if any((group.group, one) not in have for one in group.backends)]
        self.groups = len(self.left)
        self.kept = len(run.plan) - self.groups
        "groups finished before"
        self.expected = 0.0
        "estimated seconds of the finished groups"

    @property
    def done(self) -> int:
        """Groups measured since the start."""
        return self.groups - len(self.left)

    def finished(self, group: str, now: float) -> None:
        """Record that a group has its records."""
        if group in self.left:
            self.left.remove(group)
            self.expected += self.seconds.get(group, 0.0)
            self.group_begun = now

    def left_s(self, now: float) -> tuple[float, float]:
        """Return the seconds until the last group is done, and how late the current group is."""
        ratio = self.executors * (self.group_begun - self.begun) / self.expected if self.expected else 1.0
        first, *others = [ratio * self.seconds.get(group, 0.0) for group in self.left] or [0.0]
        if self.executors > 1:  # the assignment of groups is unknown here: spread the rest evenly
            first, others = max(first, *others, (first + sum(others)) / self.executors), []
        late = now - self.group_begun - first
        return max(0.0, -late) + sum(others), max(0.0, late)

    def words(self, now: float) -> str:
        """Return the remaining time; while a group is late, the time of the following groups is its lower bound."""
        left_s, late_s = self.left_s(now)
        if late_s <= 1.0:
            return f"about {_words(max(1.0, left_s))} left"
        return f"over {_words(left_s)} left" if left_s >= 1.0 else "longer than estimated"


class Bar(AbstractContextManager["Bar"]):
    """Shows the progress.

    Args:
        output: output of the command; nothing is shown if it is quiet.
        title: text shown until there is a plan with a name.
        patience_s: seconds until the first output.
        silent: show nothing.
    """

    def __init__(self, output: Output, title: str, patience_s: float | None = None, *, silent: bool = False) -> None:
        self._output, self._title, self._silent = output, title, silent or output.quiet
        self._console = None if self._silent else output.live_console()
        self._patience_s = PATIENCE_S if patience_s is None else patience_s
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._clock: Clock | None = None
        self._where = "planning"
        self._rows = (0, 0)
        "rows done and in total, of a run without groups"
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._begun = self._printed_at = time.monotonic()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Bar:
        if not self._silent:
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        with self._lock:
            if self._progress is not None:
                self._progress.stop()

    def plan(self, run: Run, seconds: Mapping[str, float], executors: int = 1) -> None:
        """Set the plan, the estimated seconds of each of its groups, and the number measured at a time."""
        with self._lock:
            self._title = run.suite
            self._clock = Clock(run, seconds, time.monotonic(), executors)

    def event(self, event: Event) -> None:
        """Handle the next event of the run."""
        with self._lock:
            if event.kind == "group" and event.group is not None and self._clock is not None:
                self._clock.finished(event.group, time.monotonic())
            self._rows = (event.done, event.total)
            words = [word for word in (event.group, event.backend, event.text) if word]
            if words:
                self._where = for_terminal("  ".join(words))
            self._draw()

    def waiting(self, event: Event) -> None:
        """Of the events of a run say, on a line of its own and where the output is quiet too, what GPU is waited for."""
        if event.kind == "waiting":
            with self.aside():
                self._output.note(event.text)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the bar while a table is printed."""
        with self._lock:
            if self._progress is not None:
                self._progress.stop()
            try:
                yield
                sys.stdout.flush()
            finally:
                if self._progress is not None and not self._over.is_set():
                    self._progress.start()

    def _tick(self) -> None:
        # The command itself notices a closed stdout or stderr.
        with suppress(OSError, ValueError):
            self._speak()

    def _speak(self) -> None:
        if self._over.wait(self._patience_s):
            return
        with self._lock:
            if self._console is None:
                self._line()
            elif not self._over.is_set():
                self._show()
        while not self._over.wait(TICK_S):
            with self._lock:
                if self._console is not None:
                    self._draw()
                elif time.monotonic() - self._printed_at >= QUIET_S:
                    self._line()

    def _line(self) -> None:
        if not self._over.is_set():
            self._printed_at = time.monotonic()
            passed = f"{_passed(self._printed_at - self._begun)}{self._left()}"
            self._output.note(f"{self._title}: {', '.join(filter(None, (self._count(), passed)))}; {self._where}")

    def _show(self) -> None:
        from rich.console import Console, RenderableType
        from rich.constrain import Constrain
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        assert self._console is not None  # without one, lines are written
        console: Console = self._console

        class Roomy(Progress):
            """Leaves room for the ^C that a terminal echoes, which would otherwise break the line and keep the bar."""

            def get_renderable(self) -> RenderableType:
                return Constrain(super().get_renderable(), max(1, console.width - len("^C") - 1))

        # The least important column is last: a narrow terminal cuts it off.
        whole, rest = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self._progress = Roomy(
            BarColumn(bar_width=12),
            TextColumn("{task.fields[count]}", table_column=whole),
            TimeElapsedColumn(table_column=whole.copy()),
            TextColumn("{task.fields[left]}", table_column=whole.copy()),
            TextColumn("{task.fields[where]}", markup=False, table_column=rest),
            console=console,
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("", total=None, where="", count="", left="")
        self._draw()
        self._progress.start()

    def _draw(self) -> None:
        if self._progress is not None and self._task is not None:
            done, total = (self._clock.done, self._clock.groups) if self._clock else self._rows
            self._progress.update(
                self._task,
                completed=done,
                total=total or None,
                where=self._where,
                count=self._count(),
                left=self._left().removeprefix(", "),
            )

    def _count(self) -> str:
        if self._clock is not None:
            return f"{self._clock.done}/{self._clock.groups} groups"
        return "{}/{}".format(*self._rows) if self._rows[1] else ""

    def _left(self) -> str:
        if self._clock is None or not self._clock.left:
            return ""
        return f", {self._clock.words(time.monotonic())}"


def _passed(seconds: float) -> str:
    """To the second: lines that follow one another within a minute must differ."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _words(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
