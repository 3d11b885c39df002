"""Compile in advance: several processes at a time open configurations and call them once.

The code that a first call compiles goes to the compiler's disk cache (Triton's, Inductor's), where the measuring
process finds it, so its own first call takes milliseconds.  Kernels that can be compiled without a GPU are compiled
before (`sweep.ahead`).  Each process is an ordinary worker that runs groups of one backend, without checks or timing,
so a configuration that does not compile, does not fit the GPU, dies or hangs fails alone and with its reason.
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
"""Default limit of processes: each holds a context and the inputs on the GPU."""

LOOK_S = 0.2


def default_jobs() -> int:
    """Return the number of usable cores, at most `MOST_JOBS`."""
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
    """Call every backend of a group once.

    Args:
        run: run whose command and device the workers use.
        group: all configurations; each becomes a group of its own.
        settings: settings of the workers, without checks and times.
        files: paths of --backends files.
        jobs: number of processes at a time.
        on_record: called with each outcome, in this thread.
        compilers: processes that compile without a GPU first, if the kernels allow it; None: one per core.
        on_text: called with the progress of these.

    Returns:
        Seconds of wall time.

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
        except BaseException as error:  # passed to the waiting thread
            ended.put(error)

    # Daemon threads do not outlive a Ctrl-C; a worker dies with its parent process.
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
    """Return the next outcome; wakes up regularly, so that Ctrl-C is handled."""
    while True:
        try:
            return ended.get(timeout=LOOK_S)
        except queue.Empty:
            continue
