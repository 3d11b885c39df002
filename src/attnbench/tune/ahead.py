"""Compiling ahead: configurations are opened and called once by several processes at a time.

What a first call compiles lands in the compiler's cache on disk (Triton's, Inductor's), where the
measuring process finds it: there the same first call is a matter of milliseconds.  What can be compiled
without a card is there before (`sweep.ahead`).  Each process is an ordinary worker that is asked for groups
of one backend, neither checked nor timed, so a configuration that does not compile, does not fit the card,
dies or hangs costs itself alone and has its reason.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Sequence

from attnbench.machine.device import Device
from attnbench.machine.fingerprint import usable_cores
from attnbench.record import PlannedGroup, Record, Run, Settings
from attnbench.sweep.ahead import CompiledAhead, groups_ahead
from attnbench.sweep.ahead import default_jobs as all_cores
from attnbench.sweep.run import Execution

MOST_JOBS = 8
"""Processes by default at most: each holds a context and the inputs on the card."""

LOOK_S = 0.2


def default_jobs() -> int:
    """As many as there are cores for, at most `MOST_JOBS`."""
    return max(1, min(MOST_JOBS, usable_cores() or 1))


def compile_ahead(
    run: Run,
    group: PlannedGroup,
    settings: Settings,
    files: Sequence[str],
    *,
    jobs: int,
    on_record: Callable[[Record], None],
    compilers: int | None = None,
    on_text: Callable[[str], None] = lambda text: None,
) -> float:
    """Have every backend of a group called once.

    Args:
        run: whose command and device the workers serve.
        group: all of them; each is done as a group of its own.
        settings: how a worker is to treat them; neither checks nor times.
        files: paths of --backends files.
        jobs: processes at a time.
        on_record: called with how each ended, in this thread.
        compilers: processes without a card that compile before, where that can be done; None: one a core.
        on_text: called with how far these are.

    Returns:
        Seconds by the wall clock.

    Raises:
        NothingToRun: no worker could be started.
    """
    began = time.perf_counter()
    device = Device.parse(run.settings.device)
    for able in groups_ahead([group], files) if device.on_gpu else []:
        asked = all_cores() if compilers is None else compilers
        with CompiledAhead([able], device, files, jobs=asked, sampled=False) as compiled:
            compiled.wait_for(able, on_text)
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in group.backends:
        waiting.put(name)
    ended: queue.SimpleQueue[Record | BaseException] = queue.SimpleQueue()
    over = threading.Event()
    plain = dataclasses.replace(settings, check=False, measure=False, baseline=None)

    def work() -> None:
        try:
            with Execution(run, files=files) as execution:
                while not over.is_set():
                    try:
                        name = waiting.get_nowait()
                    except queue.Empty:
                        return
                    ended.put(execution.one(dataclasses.replace(group, backends=(name,)), plain)[0])
        except BaseException as error:  # handed to who waits for it
            ended.put(error)

    # As daemons they do not outlive a Ctrl-C; a worker dies with the process that started it.
    for _ in range(min(jobs, len(group.backends))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in group.backends:
            found = _next(ended)
            if isinstance(found, BaseException):
                raise found
            on_record(found)
    finally:
        over.set()
    return time.perf_counter() - began


def _next(ended: queue.SimpleQueue[Record | BaseException]) -> Record | BaseException:
    """The next to end; looks up now and then, so that Ctrl-C is heard."""
    while True:
        try:
            return ended.get(timeout=LOOK_S)
        except queue.Empty:
            continue
