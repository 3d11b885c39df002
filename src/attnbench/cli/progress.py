"""A progress bar on stderr for what takes longer than two seconds, where somebody looks."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from attnbench.cli.output import Output
from attnbench.text import for_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from attnbench.sweep.run import Event

PATIENCE_S = 2.0
"""What is over before that needs no bar."""


class Bar(AbstractContextManager["Bar"]):
    """Shows the events of a run; nothing where stderr is no terminal or --quiet is given."""

    def __init__(self, output: Output, patience_s: float = PATIENCE_S) -> None:
        self._console = output.live_console()
        self._timer = threading.Timer(patience_s, self._show)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._latest: Event | None = None
        self._over = False
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        if self._console is not None:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._progress is not None:
                self._progress.stop()

    def event(self, event: Event) -> None:
        """Take the next event of the run."""
        with self._lock:
            self._latest = event
            self._update()

    def _show(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        with self._lock:
            if self._over:
                return
            # What matters least stands last: a narrow terminal cuts it short.
            whole, rest = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
            self._progress = Progress(
                BarColumn(bar_width=16), MofNCompleteColumn(table_column=whole),
                TimeElapsedColumn(table_column=whole.copy()),
                TextColumn("{task.fields[where]}", markup=False, table_column=rest),
                console=self._console, transient=True, expand=True)
            self._task = self._progress.add_task("", total=None, where="")
            self._update()
            self._progress.start()

    def _update(self) -> None:
        event = self._latest
        if event is not None and self._progress is not None and self._task is not None:
            where = for_terminal("  ".join(word for word in (event.group, event.backend, event.text) if word))
            self._progress.update(self._task, completed=event.done, total=event.total, where=where)
